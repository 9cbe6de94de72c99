// Goal: a printed schedule is read back as it was, and what cannot be run is refused with an error
// that names the line, the field and what was expected.
#include <gmock/gmock.h>

#include "absl/strings/str_replace.h"
#include "sim/world/schedule.h"
#include "tests/testing/status_matchers.h"

namespace tandem::sim {
namespace {

using ::testing::HasSubstr;

TEST(ScheduleText, IsReadBackAsItWasPrinted) {
  for (uint64_t seed = 1; seed < 200; ++seed) {
    const std::string text = ToText(DrawSchedule(seed));
    const auto parsed = ParseSchedule(text);
    ASSERT_OK(parsed);
    EXPECT_EQ(ToText(*parsed), text);
  }
}

std::string Refused(const std::string& text) {
  const auto parsed = ParseSchedule(text);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(parsed.status().message());
}

std::string PrintedSchedule() {
  Schedule schedule;
  schedule.requests.push_back({.at_us = 10, .own_tokens = 7, .max_tokens = 3});
  schedule.faults.push_back({.at_us = 20, .kind = FaultKind::kSlow, .target = 1, .amount = 5});
  return ToText(schedule);
}

TEST(ScheduleText, BadLinesAreRefusedByLineAndField) {
  const std::string text = PrintedSchedule();
  EXPECT_OK(ParseSchedule(text));
  EXPECT_THAT(Refused("nonsense x=1"), HasSubstr("line 1: \"nonsense\""));
  EXPECT_THAT(Refused(text + "fault kind=flood at_us=1"), HasSubstr("kind=flood"));
  EXPECT_THAT(Refused(text + "request at_us=soon"), HasSubstr("line 5: at_us=soon"));
  EXPECT_THAT(Refused(text + "request at_us=1"), HasSubstr("router is missing"));
  EXPECT_THAT(Refused(text + "fault kind=crash at_us=1 target=3 other=0 lasts_us=1 amount=0"),
              HasSubstr("target=3"));
}

// Each value of a valid schedule, replaced by one that cannot be run.
TEST(ScheduleText, ValuesBeyondTheirRangesAreRefusedByName) {
  const std::string text = PrintedSchedule();
  for (const auto& [good, bad, said] : std::vector<std::array<std::string, 3>>{
           {" step_us=500", " step_us=-1", "step_us=-1, expected a whole number from 0 to "},
           {" hop_us=50", " hop_us=-1", "hop_us=-1"},
           {" kv_us=200", " kv_us=-1", "kv_us=-1"},
           {" kv_us=200", " kv_us=200.5", "kv_us=200.5"},
           {" own=7", " own=4000000000", "own=4000000000, expected a whole number from 1 to 2048"},
           {" own=7", " own=2048", "shared + own + max_tokens = 2051, at most 2048"},
           {" own=7", " own=510",
            "shared + own + max_tokens = 513, a node holds with what others "
            "lend at most 512 tokens"},
           {" turn=0", " turn=500",
            "shared + own + max_tokens + turn + max_tokens = 513, a node holds"},
           {" turn=0", " turn=2048",
            "shared + own + max_tokens + turn + max_tokens = 2061, at most 2048"},
           {" answers=1", " answers=65", "answers=65"},
           {" router=0", " router=1", "router=1, the topology has 1"},
           {" blocks=64", " blocks=1048576", "expected at most 1048576 tokens in all"},
           {" block_tokens=8", " block_tokens=7", "block_tokens=7, expected a divisor of 256"},
           {" decode=1", " decode=63", "65 processes, expected at most 64"},
           {" lend_blocks=0", " lend_blocks=65", "lend_blocks=65"},
           {" window_slots=0", " window_slots=1", "window_slots=1, expected 0, or 2 to blocks"},
           {" turn=0 ", " turn=1 colour=red ", "\"colour\" is no field"},
           {" turn=0", " turn=0 turn=0", "turn is given twice"},
           {" amount=5", " amount=0", "amount=0, expected for slow 1 to 1000"},
           {"schedule seed=0", "schedule seed=0 x=1", "no other field"}}) {
    ASSERT_THAT(text, HasSubstr(good));
    EXPECT_THAT(Refused(absl::StrReplaceAll(text, {{good, bad}})), HasSubstr(said)) << bad;
  }
}

TEST(ScheduleText, ARequestMayNeedWhatOtherNodesLend) {
  Schedule schedule;
  schedule.topology.lend_blocks = 10;  // of each of the two nodes, of 64
  schedule.requests.push_back({.at_us = 10, .own_tokens = 585, .max_tokens = 7});
  EXPECT_OK(ParseSchedule(ToText(schedule)));
  ++schedule.requests[0].max_tokens;
  EXPECT_THAT(Refused(ToText(schedule)), HasSubstr("at most 592 tokens"));
}

TEST(ScheduleText, AScheduleHasOneSeedAndOneTopology) {
  const std::string text = PrintedSchedule();
  const size_t topology = text.find("topology"), request = text.find("request");
  EXPECT_THAT(Refused(""), HasSubstr("0 and 0 came"));
  EXPECT_THAT(Refused(text.substr(0, topology) + text.substr(request)), HasSubstr("1 and 0 came"));
  EXPECT_THAT(Refused(text.substr(topology)), HasSubstr("0 and 1 came"));
  EXPECT_THAT(Refused(text + text.substr(topology, request - topology)), HasSubstr("1 and 2 came"));
}

}  // namespace
}  // namespace tandem::sim
