// Goal: the figures at the top of `tandem bench kv --json` are of the largest blocks, one direction
// and the fewest streams; what another program prints is understood or refused.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/bench/kv_bench.h"
#include "cli/bench/ucx_perftest.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

KvBenchResult Result(const std::string& transport, int64_t block_bytes, int32_t streams, bool both,
                     double gbps) {
  return {.transport = transport,
          .block_bytes = block_bytes,
          .streams = streams,
          .both = both,
          .memcpy_gbps = 8,
          .gbps = gbps};
}

KvBenchReport Example() {
  KvBenchReport report;
  report.results = {Result("shm", 65536, 1, false, 3),     Result("mapped", 65536, 1, false, 6),
                    Result("mapped", 65536, 64, false, 7), Result("mapped", 65536, 1, true, 9),
                    Result("mapped", 4096, 1, false, 10),  Result("tcp", 65536, 1, false, 2),
                    Result("socket", 65536, 1, false, 4)};
  report.paced = {{.transport = "mapped",
                   .wire_ms = 2,
                   .hidden_part = 0.95,
                   .beyond_ms_p50 = 0.1,
                   .beyond_ms_p99 = 0.3}};
  report.round_trip_us = 1.5;
  report.sleep_round_trip_us = 12;
  return report;
}

TEST(KvBenchReport, TheHeadlineIsOfLargeBlocksOneWayAndFewStreams) {
  const auto json = nlohmann::json::parse(FormatJson(Example()));
  EXPECT_EQ(json["shm_gbps"], 6);
  EXPECT_EQ(json["tcp_gbps"], 2);
  EXPECT_EQ(json["socket_gbps"], 4);
  EXPECT_EQ(json["memcpy_gbps"], 8);
  EXPECT_EQ(json["round_trip_us"], 1.5);
  EXPECT_EQ(json["results"].size(), 7u);
  EXPECT_EQ(json["results"][3]["directions"], "both");
  EXPECT_EQ(json["paced"][0]["hidden_part"], 0.95);
  const auto nothing = nlohmann::json::parse(FormatJson(KvBenchReport()));
  EXPECT_EQ(nothing["shm_gbps"], 0);
}

TEST(KvBenchReport, TheTableSaysWhatWasNotRun) {
  KvBenchReport report = Example();
  EXPECT_THAT(FormatTable(report), Not(HasSubstr("ucx_perftest")));
  report.ucx_note = "ucx_perftest is not installed";
  EXPECT_THAT(FormatTable(report), HasSubstr("ucx_perftest is not installed\n"));
  report.ucx_note.clear();
  report.ucx_am_gbps = 2.9;
  EXPECT_THAT(FormatTable(report), HasSubstr("am 2.90 GB/s, put 0.00 GB/s\n"));
}

TEST(UcxPerftest, TheLastLineHasTheBandwidth) {
  const auto gbps = ParseUcxPerftest(
      "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"
      "500,5.330,359.632,359.632,100.00,1000.00,2781,2781\n");
  ASSERT_TRUE(gbps.ok());
  EXPECT_DOUBLE_EQ(*gbps, 1.048576);
  for (const char* other : {"", "\n", "1,2,3", "a,b,c,d,e,f,g", "no server"}) {
    EXPECT_FALSE(ParseUcxPerftest(other).ok()) << other;
  }
}

}  // namespace
}  // namespace tandem::cli
