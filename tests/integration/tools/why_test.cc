// Goal: in a cluster of two prefill and two decode nodes, `tandem why` names all four for a request
// that was served, marks one of each role as chosen, and says what the next best choice would have
// cost more: by as much as the decision itself, asked for as JSON, says. A node that holds the
// prompt wins over its twin, and the tokens that it holds are shown.
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class WhyOfTwoNodes : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(
        cluster_, TestCluster::Start({"--engine=hash", "--hash-row-time=1ms", "--fetch-tokens=0",
                                      "--prefill=2", "--decode=2", "--kv-blocks=2048",
                                      "--local-prefill-tokens=0"}));
  }
  void Generate(const std::string& id) {
    v1::GenerateRequest request;
    request.set_request_id(id);
    request.set_text(std::string(300, 'x'));
    request.mutable_stop()->set_max_tokens(3);
    ASSERT_OK(cluster_->Generate(request).status);
  }
  std::string Why(const std::string& id, const std::string& flag) {
    const ProgramRun run =
        RunProgram({"tandem", "why", "--router=" + cluster_->address(), flag, id});
    EXPECT_EQ(run.exit_code, 0) << run.output;
    return run.output;
  }
  nlohmann::json DecisionOn(const std::string& id) {
    return nlohmann::json::parse(Why(id, "--json"))["placements"][0];
  }

  std::unique_ptr<TestCluster> cluster_;
};

struct Row {
  std::string node;
  bool chosen = false;
  int64_t cached = 0;
  double cost = 0;  // milliseconds, the last column
};
// The rows of the text's tables.
std::vector<Row> RowsOf(const std::string& text) {
  std::vector<Row> rows;
  for (const auto line : absl::StrSplit(text, '\n')) {
    std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    const bool chosen = !words.empty() && words[0] == ">";
    if (chosen) words.erase(words.begin());
    const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
    if (words.size() < 4 || !std::all_of(words[1].begin(), words[1].end(), is_digit)) continue;
    rows.push_back({words[0], chosen, std::stoll(words[1]), std::stod(words.back())});
  }
  return rows;
}

std::vector<std::string> NamesOf(const nlohmann::json& candidates) {
  std::vector<std::string> names;
  for (const auto& candidate : candidates) names.push_back(candidate["node_id"]);
  return names;
}

// The sentence on the next best choice, from the decision.
std::string NextBest(const nlohmann::json& decision) {
  double chosen = 0;  // of the prefill node
  for (const auto& candidate : decision["prefill_nodes"])
    if (candidate.value("chosen", false)) chosen = candidate.value("score", 0.0);
  const nlohmann::json* next = nullptr;
  for (const char* list : {"decode_nodes", "prefill_nodes"})
    for (const auto& candidate : decision[list]) {
      if (candidate.value("chosen", false)) continue;
      if (next == nullptr || candidate.value("score", 0.0) < next->value("score", 0.0))
        next = &candidate;
    }
  return absl::StrFormat("; the next best choice, %s, costs %.1f ms more.",
                         (*next)["node_id"].get<std::string>(), next->value("score", 0.0) - chosen);
}

TEST_F(WhyOfTwoNodes, EachIsNamedOneOfARoleIsChosenAndTheOtherCostsMore) {
  ASSERT_NO_FATAL_FAILURE(Generate("first"));
  const std::string text = Why("first", "--json=false");
  const nlohmann::json decision = DecisionOn("first");
  EXPECT_THAT(NamesOf(decision["decode_nodes"]), UnorderedElementsAre("decode-0", "decode-1"));
  EXPECT_THAT(NamesOf(decision["prefill_nodes"]), UnorderedElementsAre("prefill-0", "prefill-1"));
  std::vector<std::string> names;
  int chosen = 0;
  for (const Row& row : RowsOf(text)) {
    names.push_back(row.node);
    chosen += row.chosen ? 1 : 0;
  }
  EXPECT_THAT(names, UnorderedElementsAre("decode-0", "decode-1", "prefill-0", "prefill-1"))
      << text;
  EXPECT_EQ(chosen, 2) << text;
  EXPECT_THAT(text, HasSubstr("FIRST TOKEN"));
  EXPECT_THAT(text, HasSubstr("  First token predicted after "));
  EXPECT_THAT(text, HasSubstr(NextBest(decision)));
}

TEST_F(WhyOfTwoNodes, TheOneThatHoldsThePromptWinsAndTheOtherCostsWhatItWouldCompute) {
  ASSERT_NO_FATAL_FAILURE(Generate("first"));
  // The router hears of the blocks with the node's next report. Requests are cheap; ask until one
  // finds them.
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  std::string id, text;
  std::vector<Row> rows;
  const auto finds_blocks = [&] {
    return std::any_of(rows.begin(), rows.end(), [](const Row& row) {
      return row.cached > 0 && absl::StartsWith(row.node, "prefill-");
    });
  };
  for (int i = 0; !finds_blocks() && absl::Now() < deadline; ++i) {
    id = absl::StrCat("again-", i);
    ASSERT_NO_FATAL_FAILURE(Generate(id));
    text = Why(id, "--json=false");
    rows = RowsOf(text);
  }
  ASSERT_TRUE(finds_blocks()) << text;
  // 300 tokens have 9 whole blocks of 32. The prefill node that holds them computes 12 rows, of 1
  // ms each, and its twin 300.
  const auto prefill = [&](bool chosen) {
    return *std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
      return row.chosen == chosen && absl::StartsWith(row.node, "prefill-");
    });
  };
  EXPECT_EQ(prefill(true).cached, 288) << text;
  EXPECT_EQ(prefill(false).cached, 0) << text;
  EXPECT_GT(prefill(false).cost, prefill(true).cost + 100) << text;
  EXPECT_THAT(text, HasSubstr(absl::StrCat("; ", prefill(true).node, " computes what it lacks.")));
  EXPECT_THAT(text, HasSubstr(NextBest(DecisionOn(id))));
}

}  // namespace
}  // namespace tandem::testing
