// Goal: the page of `tandem top` fits any terminal; it shows rates, each node's blocks by state and
// the oldest requests; and it says when what it shows is old, paused or missing.
#include "cli/top/top_page.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Time kStart = absl::UnixEpoch();

v1::NodeStatus Node(const std::string& id, const std::string& role, int64_t tokens) {
  v1::NodeStatus node;
  node.set_node_id(id);
  node.set_role(role);
  node.set_state("ready");
  v1::NodeLoad& load = *node.mutable_load();
  load.set_blocks_total(100);
  load.set_blocks_used(25);
  load.set_blocks_cached(25);
  load.set_blocks_free(50);
  node.mutable_counters()->set_generated_tokens(role == "decode" ? tokens : 0);
  // A decode node gets the prompts that the prefill node computes, and has some of them cached.
  v1::TokensBySource& prompt = *node.mutable_counters()->mutable_prompt_tokens();
  prompt.set_computed(role == "prefill" ? tokens : 0);
  prompt.set_received(role == "decode" ? 20 * tokens : 0);
  prompt.set_cached(role == "decode" ? 20 * tokens : 0);
  node.mutable_counters()->set_prompt_tokens_total(prompt.computed() + prompt.received() +
                                                   prompt.cached());
  return node;
}

// Two looks, two seconds apart: the decode node generated 200 tokens, the prefill node computed
// 4,000.
ClusterView View(int decode_nodes = 1, int requests = 1) {
  ClusterView view;
  for (const int look : {0, 1}) {
    ClusterSample sample{.at = kStart + look * absl::Seconds(2), .status = {}, .requests = {}};
    sample.status.set_router_id("router-0");
    sample.status.set_version("1.2");
    *sample.status.add_nodes() = Node("prefill-0", "prefill", 4000 * look);
    for (int i = 0; i < decode_nodes; ++i)
      *sample.status.add_nodes() = Node(absl::StrCat("decode-", i), "decode", 200 * look);
    for (int i = 0; i < requests; ++i)
      sample.requests.add_requests()->set_request_id(absl::StrCat("request-", i));
    view.Add(std::move(sample), absl::OkStatus());
  }
  return view;
}

std::vector<std::string> Page(const ClusterView& view, PageSize size, TopChoices choices = {},
                              absl::Time now = kStart + absl::Seconds(2)) {
  std::vector<std::string> texts;
  for (const StyledLine& line : TopPage("127.0.0.1:1", view, choices, size, now))
    texts.push_back(line.text);
  return texts;
}

std::string Find(const std::vector<std::string>& page, const std::string& start) {
  for (const std::string& line : page) {
    if (absl::StartsWith(line, start)) return line;
  }
  return "";
}

TEST(TopPage, ShowsRatesNodesAndRequestsInEightyColumns) {
  const std::vector<std::string> page = Page(View(), {.columns = 80, .rows = 24});
  ASSERT_EQ(page.size(), 24u);
  EXPECT_THAT(page[0], HasSubstr("router router-0 at 127.0.0.1:1"));
  EXPECT_THAT(page[2], StartsWith("each second: 100 tokens generated, 2.0k of prompts"));
  EXPECT_THAT(Find(page, "prefill-0 "), HasSubstr("2.0k "));
  const std::string decode = Find(page, "decode-0 ");
  EXPECT_THAT(decode, AllOf(HasSubstr(" 100 "), HasSubstr(" ready")));
  // A quarter of the blocks is used, a half is free; the widest state gets what rounding left.
  const auto used = std::count(decode.begin(), decode.end(), '#');
  EXPECT_GT(used, 3);
  EXPECT_NEAR(static_cast<double>(std::count(decode.begin(), decode.end(), '.')),
              2 * static_cast<double>(used), 3);
  EXPECT_NE(Find(page, "request-0 "), "");
  EXPECT_THAT(page[23], StartsWith("q quits"));
}

TEST(TopPage, AWideTerminalGetsAWideBarWithALegend) {
  const std::vector<std::string> page = Page(View(), {.columns = 120, .rows = 40});
  ASSERT_EQ(page.size(), 40u);
  EXPECT_THAT(Find(page, "NODE "), HasSubstr("KV: # used = cached ! quarantined . free"));
  const std::string decode = Find(page, "decode-0 ");
  EXPECT_GE(std::count(decode.begin(), decode.end(), '.'), 28);
}

TEST(TopPage, FitsEverySize) {
  for (const int nodes : {0, 1, 7, 300}) {
    for (const int requests : {0, 1, 100}) {
      for (int rows = 1; rows < 60; rows += 3) {
        for (int columns = 1; columns < 200; columns += 13) {
          for (const bool help : {false, true}) {
            const auto page =
                Page(View(nodes, requests), {.columns = columns, .rows = rows}, {.help = help});
            ASSERT_EQ(static_cast<int>(page.size()), rows) << nodes << " nodes";
            for (const std::string& line : page)
              ASSERT_LE(static_cast<int>(line.size()), columns) << line;
          }
        }
      }
    }
  }
}

TEST(TopPage, ALongListOfNodesMovesAndLeavesRoomForRequests) {
  const ClusterView view = View(300, 100);
  const auto top = Page(view, {});
  EXPECT_NE(Find(top, "prefill-0 "), "");
  EXPECT_NE(Find(top, "request-7 "), "");
  EXPECT_THAT(Find(top, "nodes "), StartsWith("nodes 1 to "));
  const auto moved = Page(view, {}, {.first_node = 5});
  EXPECT_EQ(Find(moved, "prefill-0 "), "");
  EXPECT_THAT(Find(moved, "nodes "), StartsWith("nodes 6 to "));
  // Beyond the end there is nothing; the last node stays in sight.
  EXPECT_NE(Find(Page(view, {}, {.first_node = 100000}), "decode-299 "), "");
}

TEST(TopPage, SaysThatTheRouterDoesNotAnswerAndHowOldThePageIs) {
  ClusterView view = View();
  view.error = absl::UnavailableError("connection refused");
  const auto page = Page(view, {}, {}, kStart + absl::Seconds(9));
  EXPECT_EQ(page.back(), "no answer: shown is 7.0s old; connection refused");
  EXPECT_NE(Find(page, "decode-0 "), "");
  ClusterView never;
  never.error = view.error;
  EXPECT_EQ(Page(never, {}).back(), "no answer: connection refused");
}

TEST(TopPage, SaysThatItIsPausedAndWhyItListsNoRequests) {
  ClusterView view = View();
  EXPECT_THAT(Page(view, {}, {.paused = true}).back(), StartsWith("paused"));
  view.last->requests.Clear();
  view.requests_error = absl::UnauthenticatedError("no key");
  EXPECT_EQ(Find(Page(view, {}), "requests: no key"), "requests: no key");
}

// The router's next answer, `later`, by when decode-0 has reported that many tokens.
void Look(ClusterView& view, absl::Duration later, int64_t tokens) {
  ClusterSample sample = *view.last;
  sample.at += later;
  sample.status.mutable_nodes(1)->set_last_heard_ms(300);
  sample.status.mutable_nodes(1)->mutable_counters()->set_generated_tokens(tokens);
  view.Add(std::move(sample), absl::OkStatus());
}

std::string TokensGenerated(const ClusterView& view) {
  const std::string line = Page(view, {})[2];
  return line.substr(0, line.find(','));
}

TEST(TopPage, ANodeThatBeganAnewHasNoRate) {
  ClusterView view = View();
  Look(view, absl::Seconds(1), 7);
  EXPECT_EQ(TokensGenerated(view), "each second: 0 tokens generated");
  EXPECT_THAT(Find(Page(view, {}), "decode-0 "), HasSubstr(" - "));
}

TEST(TopPage, ARateStandsUntilTheNodeReportsAgain) {
  ClusterView view = View();
  Look(view, absl::Milliseconds(100), 200);
  EXPECT_EQ(TokensGenerated(view), "each second: 100 tokens generated");
  EXPECT_THAT(Find(Page(view, {}), "decode-0 "), HasSubstr(" 100 "));
  // Ten looks a second, and a report of 105 tokens each 1.05 s.
  int64_t reported = 200;
  for (int tenth = 2; tenth < 100; ++tenth) {
    reported = 200 + tenth * 100 / 1050 * 105;
    Look(view, absl::Milliseconds(100), reported);
    int rate = 0;
    ASSERT_EQ(std::sscanf(TokensGenerated(view).c_str(), "each second: %d tokens", &rate), 1);
    EXPECT_NEAR(rate, 100, 11) << tenth;
  }
  Look(view, absl::Seconds(3), reported);
  EXPECT_EQ(TokensGenerated(view), "each second: 0 tokens generated") << "it is idle";
  // The first report after that is of one second, not of all the time.
  Look(view, absl::Seconds(60), reported);
  Look(view, absl::Milliseconds(100), reported + 100);
  EXPECT_EQ(TokensGenerated(view), "each second: 100 tokens generated");
}

// The report that the first look finds may be as old as the next one is young.
TEST(TopPage, TheFirstReportIsNotTakenForANewOne) {
  ClusterView view;
  ClusterSample sample{.at = kStart, .status = {}, .requests = {}};
  *sample.status.add_nodes() = Node("prefill-0", "prefill", 0);
  *sample.status.add_nodes() = Node("decode-0", "decode", 0);
  view.Add(std::move(sample), absl::OkStatus());
  EXPECT_THAT(Find(Page(view, {}), "decode-0 "), HasSubstr(" - "));
  Look(view, absl::Milliseconds(100), 100);
  EXPECT_EQ(TokensGenerated(view), "each second: 100 tokens generated");
}

TEST(BlocksBar, ShowsEveryStateThatHasBlocks) {
  v1::NodeLoad load;
  EXPECT_EQ(BlocksBar(load, 8), "        ");
  load.set_blocks_used(1);
  load.set_blocks_cached(1);
  load.set_blocks_quarantined(1);
  load.set_blocks_free(1'000'000);
  EXPECT_EQ(BlocksBar(load, 8), "#=!.....");
  EXPECT_EQ(BlocksBar(load, 4), "#=!.");
  load.set_blocks_free(0);
  EXPECT_EQ(BlocksBar(load, 6), "##==!!");
  for (int width = 0; width < 50; ++width)
    EXPECT_EQ(BlocksBar(load, width).size(), static_cast<size_t>(width));
}

}  // namespace
}  // namespace tandem::cli
