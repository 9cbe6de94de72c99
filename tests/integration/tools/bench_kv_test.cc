// Goal: `tandem bench kv` moves real blocks over every transport with one or many streams and says
// what it measured in a table and in JSON; wrong use is named before anything runs.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/testing/program_run.h"

namespace tandem::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(BenchKv, MeasuresEveryTransport) {
  const ProgramRun run =
      RunProgram({"tandem", "bench", "kv", "--bytes=4194304", "--blocks=4096,65536",
                  "--transports=mapped,shm,tcp,socket", "--streams=1,3", "--directions=one,both",
                  "--rounds=2", "--paced=3", "--no-ucx-perftest", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  // The log comes first.
  const auto report = nlohmann::json::parse(run.output.substr(run.output.find("{\"memcpy")));
  for (const char* figure : {"memcpy_gbps", "shm_gbps", "tcp_gbps", "socket_gbps", "round_trip_us",
                             "sleep_round_trip_us"}) {
    EXPECT_GT(report[figure].get<double>(), 0) << figure;
  }
  // Two sizes; three transports with one or three streams, one way or both; and the socket.
  ASSERT_EQ(report["results"].size(), 2u * (3 * 2 * 2 + 1));
  for (const auto& result : report["results"]) {
    EXPECT_GT(result["gbps"].get<double>(), 0) << result;
    EXPECT_GT(result["send_cpu_ms_per_mb"].get<double>(), 0) << result;
    EXPECT_GT(result["receive_cpu_ms_per_mb"].get<double>(), 0) << result;
    EXPECT_GT(result["fairness"].get<double>(), 0) << result;
    EXPECT_LE(result["fairness"].get<double>(), 1) << result;
  }
  ASSERT_EQ(report["paced"].size(), 3u);
  for (const auto& paced : report["paced"]) {
    EXPECT_GT(paced["wire_ms"].get<double>(), 0) << paced;
    EXPECT_GT(paced["hidden_part"].get<double>(), 0) << paced;
    EXPECT_LE(paced["hidden_part"].get<double>(), 1) << paced;
    EXPECT_GE(paced["beyond_ms_p99"], paced["beyond_ms_p50"]) << paced;
  }
}

TEST(BenchKv, MeasuresSealsAndEncryption) {
  const ProgramRun run =
      RunProgram({"tandem", "bench", "kv", "--bytes=4194304", "--blocks=65536",
                  "--transports=shm+encrypted,tcp+encrypted,shm+unsealed,tcp+unsealed",
                  "--rounds=2", "--paced=0", "--no-ucx-perftest", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const auto report = nlohmann::json::parse(run.output.substr(run.output.find("{\"memcpy")));
  ASSERT_EQ(report["results"].size(), 4u);
  for (const auto& result : report["results"]) {
    EXPECT_GT(result["gbps"].get<double>(), 0) << result;
  }
  // The headline is of transports as nodes have them.
  EXPECT_EQ(report["tcp_gbps"].get<double>(), 0);
}

TEST(BenchKv, PrintsATable) {
  const ProgramRun run = RunProgram({"tandem", "bench", "kv", "--bytes=1048576", "--blocks=1048576",
                                     "--transports=tcp", "--rounds=1", "--paced=0"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("MEMCPY GB/S"));
  EXPECT_THAT(run.output, ContainsRegex("tcp +1048576"));
}

TEST(BenchKv, WrongUseIsSaid) {
  const auto refused = [](const std::string& flag, const std::string& word) {
    const ProgramRun run = RunProgram({"tandem", "bench", "kv", flag});
    EXPECT_EQ(run.exit_code, 2) << flag;
    EXPECT_THAT(run.output, HasSubstr(word)) << flag;
  };
  refused("--blocks=63", "expected a number from 64");
  refused("--blocks=large", "expected a number from 64");
  refused("--blocks=1073741824", "to --bytes");
  refused("--transports=pigeon", "expected socket, mapped, shm, tcp, shm+encrypted");
  refused("--transports=tcp+unsealed+encrypted", "expected socket");
  refused("--transports=mapped+encrypted", "expected socket");
  refused("--streams=0", "from 1 to 1024");
  refused("--directions=up", "expected one or both");
  for (const char* flag : {"--blocks", "--transports", "--streams", "--directions"}) {
    refused(absl::StrCat(flag, "="), absl::StrCat(flag, ": no value, expected "));
  }
}

}  // namespace
}  // namespace tandem::testing
