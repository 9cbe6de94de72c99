// Goal: what `tandem why` prints of a placement with two nodes of each role: every candidate by
// name, best first, with its figures; which was chosen; what the next best one would have cost
// more; and why no prefill node computes, where none does.
#include "cli/report/placement_text.h"

#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

using Scores = std::vector<std::pair<std::string, double>>;

void Add(google::protobuf::RepeatedPtrField<v1::PlacementCandidate>& list, const std::string& node,
         bool chosen, int cached, double score, double pair_score, const Scores& scores,
         double weight) {
  v1::PlacementCandidate& candidate = *list.Add();
  candidate.set_node_id(node);
  candidate.set_chosen(chosen);
  candidate.set_cached_tokens(cached);
  candidate.set_score(score);
  candidate.set_pair_score(pair_score);
  for (const auto& [name, value] : scores) {
    v1::PlacementScore& part = *candidate.add_scores();
    part.set_name(name);
    part.set_score(value);
    part.set_weight(weight);
  }
}

v1::PlacementDecision& Decision(v1::RequestTrace& trace, const std::string& policy) {
  trace.set_request_id("r1");
  v1::PlacementDecision& decision = *trace.add_placements();
  decision.set_at_ms(1.25);
  decision.set_policy(policy);
  decision.set_prompt_tokens(300);
  decision.set_local_prefill_tokens_max(16);
  return decision;
}

// decode-b computes the prompt on prefill-b, for which prefill-a waits too long.
v1::RequestTrace ByCost() {
  v1::RequestTrace trace;
  v1::PlacementDecision& decision = Decision(trace, "cost");
  Add(*decision.mutable_decode_nodes(), "decode-a", false, 0, 45, 0,
      {{"wait", 0}, {"first token", 42}}, 0);
  Add(*decision.mutable_decode_nodes(), "decode-b", true, 64, 33.5, 0,
      {{"wait", 0}, {"first token", 31}}, 0);
  Add(*decision.mutable_prefill_nodes(), "prefill-a", false, 0, 40.75, 0,
      {{"wait", 20}, {"first token", 38.25}}, 0);
  Add(*decision.mutable_prefill_nodes(), "prefill-b", true, 0, 33.5, 0,
      {{"wait", 0}, {"first token", 31}}, 0);
  return trace;
}

TEST(PlacementText, ByCostNamesEachNodeItsTimesTheChoiceAndTheNextBest) {
  EXPECT_EQ(FormatPlacements(ByCost()), R"(request r1
sequence 0, placed at 1.25 ms by cost
  predicted milliseconds; the least cost is chosen, by lot where the model's error allows no order
    DECODE NODE   CACHED     WAIT FIRST TOKEN     COST
  > decode-b          64      0.0        31.0     33.5
    decode-a           0      0.0        42.0     45.0
    PREFILL NODE   CACHED     WAIT FIRST TOKEN     COST
  > prefill-b           0      0.0        31.0     33.5
    prefill-a           0     20.0        38.2     40.8
  decode-b decodes and lacks 236 of the prompt's 300 tokens; prefill-b computes what it lacks.
  First token predicted after 31.0 ms; the next best choice, prefill-a, costs 7.2 ms more.
)");
}

TEST(PlacementText, ItSaysWhatTheChosenNodesReadFromStorage) {
  v1::RequestTrace trace = ByCost();
  v1::PlacementDecision& decision = *trace.mutable_placements(0);
  for (v1::PlacementCandidate& node : *decision.mutable_decode_nodes())
    if (node.node_id() == "decode-b") node.set_disk_tokens(48);
  for (v1::PlacementCandidate& node : *decision.mutable_prefill_nodes())
    if (!node.chosen()) node.set_host_memory_tokens(7);
  const std::string text = FormatPlacements(trace);
  EXPECT_NE(text.find("  Of decode-b's cached tokens 0 are in host memory and 48 on disk.\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("prefill-a's cached"), std::string::npos) << text;
}

TEST(PlacementText, ByCostTheNextBestIsTheLeastOfBothRoles) {
  v1::RequestTrace trace = ByCost();
  trace.mutable_placements(0)->mutable_decode_nodes(0)->set_score(34);
  EXPECT_NE(FormatPlacements(trace).find("the next best choice, decode-a, costs 0.5 ms more."),
            std::string::npos)
      << FormatPlacements(trace);
}

TEST(PlacementText, ByCostWithoutAPrefillNodeItSaysThatThisCostsLeast) {
  v1::RequestTrace trace = ByCost();
  trace.mutable_placements(0)->mutable_prefill_nodes(1)->set_chosen(false);
  trace.mutable_placements(0)->mutable_prefill_nodes(1)->set_score(36.5);
  const std::string text = FormatPlacements(trace);
  EXPECT_NE(text.find("  decode-b decodes and lacks 236 of the prompt's 300 tokens; it computes "
                      "them itself: that costs least.\n"
                      "  First token predicted after 31.0 ms; the next best choice, prefill-b, "
                      "costs 3.0 ms more.\n"),
            std::string::npos)
      << text;
}

TEST(PlacementText, ByCostADecodeNodeAloneMayFetch) {
  v1::RequestTrace trace = ByCost();
  v1::PlacementDecision& decision = *trace.mutable_placements(0);
  decision.clear_prefill_nodes();
  v1::PlacementScore& fetch = *decision.mutable_decode_nodes(1)->add_scores();
  fetch.set_name("fetch");
  fetch.set_score(4.5);
  const std::string text = FormatPlacements(trace);
  EXPECT_NE(text.find("tokens; it fetches what another node holds, and computes the rest: no "
                      "prefill node may take them.\n"
                      "  First token predicted after 31.0 ms; the next best choice, decode-a, "
                      "costs 11.5 ms more.\n"),
            std::string::npos)
      << text;
}

TEST(PlacementText, ItComparesFirstTokensWithTheirPredictions) {
  v1::RequestTrace trace = ByCost();
  for (int i = 0; i < 2; ++i) {
    v1::Finished& finished = *trace.add_sequences();
    finished.set_sequence_index(1 - i);
    finished.mutable_timing()->set_queue_ms(1.25);
    finished.mutable_timing()->set_first_token_ms(34.5);
    if (i == 0) finished.mutable_timing()->set_first_token_predicted_ms(31);
  }
  const std::string text = FormatPlacements(trace);
  EXPECT_NE(
      text.find("\nsequence 1: first token 33.2 ms after its placement; predicted were 31.0\n"),
      std::string::npos)
      << text;
  EXPECT_EQ(text.find("sequence 0: first"), std::string::npos) << "nothing was predicted for it";
}

TEST(PlacementText, ByAffinityNamesEachNodeItsScoresTheChoiceAndABackoff) {
  v1::RequestTrace trace;
  v1::PlacementDecision& decision = Decision(trace, "affinity");
  Add(*decision.mutable_decode_nodes(), "d0", false, 0, 0.25, 0.5, {{"prefix", 0}, {"room", 1}}, 2);
  Add(*decision.mutable_decode_nodes(), "d1", true, 64, 0.75, 0.8, {{"prefix", 1}, {"room", 0.5}},
      2);
  Add(*decision.mutable_prefill_nodes(), "p0", true, 32, 0.6, 0.8, {{"prefix", 0.5}}, 1);
  Add(*decision.mutable_prefill_nodes(), "p1", false, 0, 0.9, -1, {{"prefix", 0}}, 1);
  EXPECT_EQ(FormatPlacements(trace), R"(request r1
sequence 0, placed at 1.25 ms by affinity
    DECODE NODE   CACHED     PREFIX*2       ROOM*2    SCORE     PAIR
  > d1                64        1.000        0.500    0.750    0.800
    d0                 0        0.000        1.000    0.250    0.500
    PREFILL NODE   CACHED     PREFIX*1    SCORE     PAIR
  > p0                 32        0.500    0.600    0.800
    p1                  0        0.000    0.900  backoff
  d1 decodes and lacks 236 of the prompt's 300 tokens; p0 computes what neither holds.
)");
}

TEST(PlacementText, WithoutPrefillNodesItSaysSo) {
  v1::RequestTrace trace;
  v1::PlacementDecision& decision = Decision(trace, "affinity");
  Add(*decision.mutable_decode_nodes(), "d0", true, 0, 1, 1, {}, 0);
  EXPECT_NE(FormatPlacements(trace).find("it computes them itself: no prefill node may take them."),
            std::string::npos);
}

}  // namespace
}  // namespace tandem::cli
