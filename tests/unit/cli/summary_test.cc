// Goal: the summary of a request says how fast its KV moved by the time the wire was busy, not by
// the time of the prefill that it was pushed behind; and why the answer ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cli/report/summary_text.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::Finished MovedRequest() {
  v1::Finished finished;
  v1::Route& route = *finished.mutable_route();
  route.set_kv_bytes_moved(4 << 20);
  route.set_kv_transfer_ms(220);
  route.set_kv_receive_ms(2);
  route.set_transport("shm");
  finished.mutable_timing()->set_prefill_ms(218);
  return finished;
}

TEST(SummaryTest, RateIsTheWires) {
  EXPECT_THAT(
      FormatSummary(MovedRequest()),
      HasSubstr("  KV moved     4.00 MiB over shm at 2.1 GB/s, behind 218 ms of prefill\n"));
}

TEST(SummaryTest, SlowRatesAreInMegabytes) {
  v1::Finished finished = MovedRequest();
  finished.mutable_route()->set_kv_receive_ms(100);
  EXPECT_THAT(FormatSummary(finished), HasSubstr(" over shm at 42 MB/s, behind"));
}

TEST(SummaryTest, WithoutTimesNoRateIsClaimed) {
  v1::Finished finished = MovedRequest();
  finished.mutable_route()->set_kv_receive_ms(0);
  finished.mutable_timing()->set_prefill_ms(0);
  EXPECT_THAT(FormatSummary(finished), HasSubstr("  KV moved     4.00 MiB over shm\n"));
}

TEST(SummaryTest, ItSaysWhyTheAnswerEnded) {
  v1::Finished finished;
  EXPECT_THAT(FormatSummary(finished), Not(HasSubstr("finished")));
  finished.set_reason(v1::FINISH_REASON_STOP);
  EXPECT_THAT(FormatSummary(finished), HasSubstr("  finished     stop\n"));
  EXPECT_EQ(CutOffNote(finished), "");
  finished.set_reason(v1::FINISH_REASON_LENGTH);
  finished.mutable_usage()->set_output_tokens(6);
  EXPECT_THAT(FormatSummary(finished), HasSubstr("  finished     length\n"));
  EXPECT_THAT(CutOffNote(finished), HasSubstr("[cut off after 6 tokens: --max-tokens"));
}

TEST(SummaryTest, NothingMoved) {
  const std::string text = FormatSummary(v1::Finished());
  EXPECT_THAT(text, HasSubstr("  KV moved     nothing\n"));
  EXPECT_THAT(text, Not(HasSubstr("GB/s")));
}

}  // namespace
}  // namespace tandem::cli
