// Goal: the tables of `tandem status` and `tandem ps` fit 80 columns whatever a router answers,
// name what is hot, and let no name steer the terminal; JSON for programs has numbers as numbers.
#include "cli/status/status_table.h"

#include <gmock/gmock.h>

#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/report/message_json.h"
#include "cli/status/heat.h"
#include "cli/status/quantities.h"

namespace tandem::cli {
namespace {

using ::testing::EndsWith;

v1::NodeStatus Node(const std::string& id) {
  v1::NodeStatus node;
  node.set_node_id(id);
  node.set_role("decode");
  node.set_state("ready");
  node.mutable_load()->set_blocks_total(1000);
  return node;
}

// A status whose every figure and name is as large as its type allows.
v1::GetStatusResponse LargestStatus() {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  v1::GetStatusResponse status;
  status.set_router_id(std::string(300, 'r'));
  status.set_version(std::string(300, 'v'));
  status.set_uptime_s(1e300);
  v1::RouterStatus& router = *status.mutable_router();
  router.set_requests_running(kMax);
  router.set_requests_queued(kMax);
  router.set_requests_finished(kMax);
  router.set_requests_failed(kMax);
  router.set_requests_refused(kMax);
  router.set_index_blocks(kMax);
  v1::NodeStatus& node = *status.add_nodes();
  node = Node(std::string(300, 'n'));
  node.set_role(std::string(300, 'o'));
  node.set_state(std::string(300, 's'));
  v1::NodeLoad& load = *node.mutable_load();
  load.set_blocks_total(kMax);
  load.set_blocks_used(kMax);
  load.set_blocks_cached(kMax);
  load.set_sequences_running(kMax);
  load.set_sequences_waiting(kMax);
  node.mutable_counters()->set_generated_tokens(kMax);
  v1::StepCost& cost = *node.mutable_step_cost();
  cost.set_samples(kMax);
  cost.set_predicted_us(1e300);
  cost.set_actual_us(1e300);
  cost.set_median_relative_error(1e300);
  cost.set_prompt_row_us(1e300);
  cost.set_generated_row_us(1e300);
  for (v1::CopyCost* copies : {node.mutable_storage_cost()->mutable_read(),
                               node.mutable_storage_cost()->mutable_write()}) {
    copies->set_samples(kMax);
    copies->set_bytes_per_second(1e300);
    copies->set_relative_error(1e300);
  }
  v1::NodePairStatus& pair = *status.add_links();
  pair.set_from_node(std::string(300, 'f'));
  pair.set_to_node(std::string(300, 't'));
  pair.set_transport(std::string(300, 'x'));
  pair.set_kv_transfers(kMax);
  pair.set_kv_bytes(kMax);
  pair.set_last_transfer_ms(1e300);
  pair.set_bytes_per_second(1e300);
  pair.set_rate_relative_error(1e300);
  pair.set_rate_samples(kMax);
  return status;
}

TEST(StatusTable, NoLineIsWiderThanEightyColumns) {
  for (const StyledLine& line : StatusLines(LargestStatus())) {
    EXPECT_LE(line.text.size(), 80u) << line.text;
    EXPECT_FALSE(absl::StrContains(line.text, " OFF")) << "reads as switched off: " << line.text;
  }
}

TEST(StatusTable, EachTierOfStorageShowsItsBlocksHitsAndRates) {
  v1::GetStatusResponse status;
  *status.add_nodes() = Node("without");
  v1::NodeStatus& node = *status.add_nodes() = Node("with");
  v1::StorageCost& cost = *node.mutable_storage_cost();
  cost.mutable_read()->set_samples(12);
  cost.mutable_read()->set_bytes_per_second(1.5e9);
  cost.mutable_read()->set_relative_error(0.2);
  node.mutable_load()->set_blocks_on_disk(7);
  node.mutable_load()->set_blocks_in_host_memory(3);
  node.mutable_counters()->mutable_disk()->set_blocks_read(12);
  node.mutable_counters()->mutable_host_memory()->set_blocks_read(5);
  using Words = std::vector<std::string>;
  const auto rows = [&] {
    std::vector<Words> found;
    for (const StyledLine& line : StatusLines(status)) {
      const Words words = absl::StrSplit(line.text, ' ', absl::SkipEmpty());
      if (words.size() > 1 && (words[1] == "disk" || words[1] == "memory")) found.push_back(words);
    }
    return found;
  };
  using ::testing::ElementsAre;
  using ::testing::MatchesRegex;
  const auto disk = ElementsAre("with", "disk", "7", "12", MatchesRegex("1.*/s"), "20%", "-", "-");
  EXPECT_THAT(rows(), ElementsAre(disk));
  cost.mutable_host_read()->set_samples(1);
  cost.mutable_host_read()->set_bytes_per_second(4e9);
  const auto memory =
      ElementsAre("with", "memory", "3", "5", MatchesRegex("[34].*/s"), "0%", "-", "-");
  EXPECT_THAT(rows(), ElementsAre(memory, disk));
  cost.clear_host_read();
  cost.set_in_memory(true);
  EXPECT_THAT(rows(), ElementsAre(ElementsAre("with", "memory", "3", "5", MatchesRegex("1.*/s"),
                                              "20%", "-", "-")));
}

TEST(StatusTable, APairHasNoRateBeforeItsTransfersTellOne) {
  v1::GetStatusResponse status;
  *status.add_nodes() = Node("a");
  v1::NodePairStatus& pair = *status.add_links();
  pair.set_from_node("a");
  pair.set_to_node("b");
  pair.set_bytes_per_second(213e9);
  const auto shown = [&](int64_t samples, double error) {
    pair.set_rate_samples(samples);
    pair.set_rate_relative_error(error);
    const std::vector<std::string> words =
        absl::StrSplit(StatusLines(status).back().text, ' ', absl::SkipEmpty());
    return absl::StrCat(words[words.size() - 2], " ", words.back());
  };
  EXPECT_EQ(shown(1, 1), "- -");
  EXPECT_EQ(shown(7, 0.26), "- -");
  EXPECT_EQ(shown(7, 0.25), "213GB/s 25%");
  EXPECT_EQ(shown(8, 1), "213GB/s 100%");
}

TEST(StatusTable, AHotNodeStandsOutAndSaysWhy) {
  v1::GetStatusResponse status;
  *status.add_nodes() = Node("calm");
  *status.add_nodes() = Node("busy");
  status.mutable_nodes(1)->mutable_load()->set_sequences_waiting(9);
  int hot = 0;
  for (const StyledLine& line : StatusLines(status)) {
    if (absl::StartsWith(line.text, "calm")) {
      EXPECT_THAT(line.text, EndsWith("  ready"));
    }
    if (line.style != StyledLine::Style::kHot) continue;
    ++hot;
    EXPECT_THAT(line.text, EndsWith("  9 waiting"));
  }
  EXPECT_EQ(hot, 1);
}

TEST(StatusTable, ANameCannotSteerTheTerminal) {
  v1::GetStatusResponse status;
  *status.add_nodes() = Node("\033[2Jgone\n");
  v1::ListRequestsResponse requests;
  requests.add_requests()->set_request_id("\033[2Jgone\xC3\xA9");
  StyledLines lines = StatusLines(status);
  for (const StyledLine& line : RequestLines(requests)) lines.push_back(line);
  for (const StyledLine& line : lines) {
    for (const char c : line.text) EXPECT_TRUE(c >= 0x20 && c <= 0x7E) << line.text;
  }
}

TEST(StatusTable, AFleetWithoutNodesSaysSo) {
  EXPECT_EQ(StatusLines(v1::GetStatusResponse()).back().text, "no node has joined");
}

TEST(RequestTable, NoLineIsWiderThanEightyColumns) {
  v1::ListRequestsResponse requests;
  v1::RunningRequest& request = *requests.add_requests();
  request.set_request_id(std::string(300, 'q'));
  request.set_state(std::string(300, 's'));
  request.set_age_s(1e300);
  request.set_prompt_tokens(std::numeric_limits<int32_t>::max());
  request.set_output_tokens(std::numeric_limits<int32_t>::max());
  request.set_prefill_node(std::string(300, 'p'));
  request.set_decode_node(std::string(300, 'd'));
  request.set_attempts(std::numeric_limits<int32_t>::max());
  request.set_sequences(std::numeric_limits<int32_t>::max());
  for (const StyledLine& line : RequestLines(requests)) {
    EXPECT_LE(line.text.size(), 80u) << line.text;
  }
  const StyledLines wide = RequestLines(requests, 120);
  EXPECT_THAT(wide[1].text, ::testing::StartsWith(std::string(61, 'q') + "~ "));
  EXPECT_LE(wide[1].text.size(), 120u);
}

TEST(Heat, TheGravestReasonWins) {
  v1::NodeStatus node = Node("n");
  EXPECT_EQ(HeatOf(node), "");
  node.mutable_load()->set_blocks_cached(1000);
  EXPECT_EQ(HeatOf(node), "") << "a full cache is a good one";
  node.mutable_load()->set_blocks_used(900);
  EXPECT_EQ(HeatOf(node), "KV 90%");
  node.mutable_load()->set_sequences_waiting(2);
  EXPECT_EQ(HeatOf(node), "2 waiting");
  node.set_state("draining");
  EXPECT_EQ(HeatOf(node), "draining");
  node.set_last_heard_ms(5000);
  EXPECT_EQ(HeatOf(node), "silent 5.0s");
  node.set_state("lost");
  EXPECT_EQ(HeatOf(node), "lost");
}

TEST(Quantities, StayWithinTheirColumnsAtEveryMagnitude) {
  for (double value = 0.001; value < 1e30; value *= 1.37) {
    EXPECT_LE(ShortCount(value).size(), 5u) << value;
    EXPECT_LE(ShortBytes(value).size(), 6u) << value;
    EXPECT_LE(ShortAge(value).size(), 6u) << value;
  }
  EXPECT_EQ(ShortCount(999), "999");
  EXPECT_EQ(ShortCount(1249), "1.2k");
  EXPECT_EQ(ShortCount(99999), "100k");
  EXPECT_EQ(ShortCount(999999), "1.0M");
  EXPECT_EQ(ShortBytes(43e6), "43MB");
  EXPECT_EQ(ShortAge(725), "12m05s");
  EXPECT_EQ(Fit("decode-10", 6), "decod~");
}

TEST(MessageJson, NumbersAreNumbersAndDefaultsAreThere) {
  v1::GetStatusResponse status;
  status.set_router_id("a\"b");
  status.mutable_router()->set_requests_finished(int64_t{1} << 60);
  v1::NodeStatus& node = *status.add_nodes();
  node.set_incarnation(std::numeric_limits<uint64_t>::max());
  const auto json = nlohmann::json::parse(ToJson(status).dump());
  EXPECT_EQ(json["router_id"], "a\"b");
  EXPECT_EQ(json["router"]["requests_finished"], int64_t{1} << 60);
  EXPECT_EQ(json["nodes"][0]["incarnation"], std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(json["router"]["requests_failed"], 0);
  EXPECT_TRUE(json["links"].is_array());
  EXPECT_FALSE(json["nodes"][0].contains("load")) << "a nested message that is absent";
}

}  // namespace
}  // namespace tandem::cli
