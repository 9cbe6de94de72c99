// Goal: a synthetic load is what its options say: arrivals have the mean and spread of their
// distribution, lengths stay in their ranges and have the curve's mean, prefixes are shared,
// equal seeds give equal requests; files of prompts are read, and refused by line.
#include "cli/bench_serve/workload.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <set>

#include "cli/bench_serve/arrivals.h"
#include "cli/bench_serve/lengths.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

struct Spread {
  double mean = 0;
  double variation = 0;  // variance / mean^2
};

Spread Measure(const ArrivalOptions& options, uint64_t seed, int draws) {
  const auto random = NewSeededRandom(seed);
  Arrivals arrivals(options, *random);
  double sum = 0, squares = 0;
  for (int i = 0; i < draws; ++i) {
    const double gap = absl::ToDoubleSeconds(arrivals.NextGap());
    EXPECT_GE(gap, 0);
    sum += gap;
    squares += gap * gap;
  }
  const double mean = sum / draws;
  return {.mean = mean, .variation = (squares / draws - mean * mean) / (mean * mean)};
}

uint64_t FreshSeed() {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  return seed;
}

constexpr int kDraws = 200'000;

TEST(Arrivals, EvenOnesAreEven) {
  const Spread spread = Measure({.kind = ArrivalKind::kEven, .rate = 40}, FreshSeed(), 1000);
  EXPECT_NEAR(spread.mean, 0.025, 1e-9);
  EXPECT_NEAR(spread.variation, 0, 1e-6);
}

// The mean of n exponential gaps has a relative standard deviation of 1/sqrt(n), their squared
// coefficient of variation one of about sqrt(8/n): both bounds are beyond eight of those.
TEST(Arrivals, PoissonOnesHaveTheMeanAndVarianceOfAnExponential) {
  const Spread spread = Measure({.kind = ArrivalKind::kPoisson, .rate = 40}, FreshSeed(), kDraws);
  EXPECT_NEAR(spread.mean * 40, 1, 0.02);
  EXPECT_NEAR(spread.variation, 1, 0.06);
}

TEST(Arrivals, BurstyOnesHaveTheMeanAndTheGammasVariance) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const Spread spread = Measure(
        {.kind = ArrivalKind::kBursty, .rate = 100, .burstiness = burstiness}, FreshSeed(), kDraws);
    EXPECT_NEAR(spread.mean * 100, 1, 0.05) << burstiness;
    EXPECT_NEAR(spread.variation * burstiness, 1, 0.15) << burstiness;
  }
}

TEST(Lengths, AreReadFromNumbersAndRanges) {
  ASSERT_OK_AND_ASSIGN(const LengthRange one, ParseLengthRange("x", "512"));
  EXPECT_EQ(one.min, 512);
  EXPECT_EQ(one.max, 512);
  ASSERT_OK_AND_ASSIGN(const LengthRange range, ParseLengthRange("x", "128..1024"));
  EXPECT_EQ(range.min, 128);
  EXPECT_EQ(range.max, 1024);
  for (const char* bad : {"", "0", "-1", "a", "1..", "..5", "9..3", "1..2..3", "99999999999"}) {
    const auto refused = ParseLengthRange("prompt-tokens", bad);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--prompt-tokens")) << bad;
  }
}

TEST(Lengths, UniformOnesCoverTheirRange) {
  const auto random = NewSeededRandom(FreshSeed());
  std::set<int32_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(DrawLength(LengthRange{7, 10}, *random));
  EXPECT_EQ(seen, (std::set<int32_t>{7, 8, 9, 10}));
}

TEST(Lengths, CurvesKeepTheirRangeAndAlmostTheirMean) {
  const auto random = NewSeededRandom(FreshSeed());
  for (const LengthCurve& curve : {kShareGptPrompts, kShareGptAnswers}) {
    double sum = 0;
    for (int i = 0; i < kDraws; ++i) {
      const int32_t length = DrawLength(curve, *random);
      ASSERT_GE(length, curve.range.min);
      ASSERT_LE(length, curve.range.max);
      sum += length;
    }
    EXPECT_NEAR(sum / kDraws / curve.mean, 1, 0.1) << curve.mean;
  }
}

TEST(Workload, EqualSeedsGiveEqualRequests) {
  WorkloadOptions options;
  options.prompt_tokens = {1, 50};
  options.output_tokens = {3, 9};
  options.seed = FreshSeed();
  const auto a = NewSyntheticWorkload(options), b = NewSyntheticWorkload(options);
  for (int i = 0; i < 100; ++i) {
    const LoadRequest one = a->Next(), other = b->Next();
    EXPECT_EQ(one.index, i);
    EXPECT_EQ(one.tokens, other.tokens);
    EXPECT_EQ(one.max_tokens, other.max_tokens);
    EXPECT_EQ(one.seed, other.seed);
    EXPECT_THAT(one.max_tokens, ::testing::AllOf(::testing::Ge(3), ::testing::Le(9)));
    for (const int32_t id : one.tokens) {
      EXPECT_THAT(id, ::testing::AllOf(::testing::Ge(33), ::testing::Le(126)));
    }
  }
}

TEST(Workload, PrefixesAreSharedAndPromptsKeepTheirLength) {
  WorkloadOptions options;
  options.prompt_tokens = {100, 100};
  options.shared_prefix_tokens = 80;
  options.prefixes = 3;
  const auto workload = NewSyntheticWorkload(options);
  std::set<std::vector<int32_t>> beginnings, wholes;
  for (int i = 0; i < 200; ++i) {
    const LoadRequest request = workload->Next();
    ASSERT_EQ(request.tokens.size(), 100u);
    beginnings.insert({request.tokens.begin(), request.tokens.begin() + 80});
    wholes.insert(request.tokens);
  }
  EXPECT_EQ(beginnings.size(), 3u);
  EXPECT_EQ(wholes.size(), 200u);
}

TEST(Workload, TextHasTheWordsThatMakeTheTokens) {
  WorkloadOptions options;
  options.as_text = true;
  options.prompt_tokens = {500, 500};
  options.tokens_per_word = 5;
  const LoadRequest request = NewSyntheticWorkload(options)->Next();
  EXPECT_TRUE(request.tokens.empty());
  EXPECT_EQ(std::count(request.text.begin(), request.text.end(), ' '), 100);
}

TEST(Workload, ConversationsRepeatTheTurnsBefore) {
  WorkloadOptions options;
  options.prompt_tokens = {20, 40};
  options.output_tokens = {5, 9};
  options.shared_prefix_tokens = 12;
  options.prefixes = 2;
  options.turns = 3;
  options.seed = FreshSeed();
  const auto workload = NewChatWorkload(options), again = NewChatWorkload(options);
  std::set<std::string> systems, openings;
  std::vector<LoadRequest> before(kConversations);
  for (size_t i = 0; i < 2 * 3 * kConversations; ++i) {
    const LoadRequest request = workload->Next();
    const size_t turn = i / kConversations % 3;
    LoadRequest& last = before[i % kConversations];
    EXPECT_EQ(request.index, static_cast<int64_t>(i));
    ASSERT_EQ(request.messages.size(), 2 + 2 * turn);
    EXPECT_EQ(request.messages[0].role, "system");
    EXPECT_EQ(request.messages.back().role, "user");
    if (turn == 0) {
      systems.insert(request.messages[0].content);
      openings.insert(request.messages[1].content);
    } else {
      for (size_t j = 0; j < last.messages.size(); ++j) {
        EXPECT_EQ(request.messages[j].content, last.messages[j].content) << j;
      }
      const LoadMessage& answer = request.messages[last.messages.size()];
      EXPECT_EQ(answer.role, "assistant");
      EXPECT_EQ(std::count(answer.content.begin(), answer.content.end(), ' '), last.max_tokens);
    }
    const LoadRequest same = again->Next();
    EXPECT_EQ(same.messages.back().content, request.messages.back().content);
    EXPECT_EQ(same.max_tokens, request.max_tokens);
    last = request;
  }
  EXPECT_EQ(systems.size(), 2u);
  EXPECT_EQ(openings.size(), 2 * kConversations);
}

TEST(Workload, FewRequestsReachTheLastTurn) {
  WorkloadOptions options;
  options.prompt_tokens = options.output_tokens = {3, 3};
  options.turns = 4;
  for (const int64_t requests : {4, 8, 20, 250, 1000}) {
    options.requests = requests;
    const auto workload = NewChatWorkload(options);
    std::vector<int64_t> turns(4);
    for (int64_t i = 0; i < requests; ++i) {
      const LoadRequest request = workload->Next();
      const auto users = std::count_if(request.messages.begin(), request.messages.end(),
                                       [](const LoadMessage& m) { return m.role == "user"; });
      ASSERT_LE(users, 4);
      ++turns[static_cast<size_t>(users) - 1];
    }
    for (const int64_t requests_of_turn : turns) EXPECT_GE(requests_of_turn, requests / 4 - 64);
    EXPECT_GE(turns[3], std::min<int64_t>(requests / 4, 58)) << requests;
  }
}

TEST(Workload, ChatFilesHaveMessages) {
  const char* const lines =
      "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n{\"prompt\": \"a\"}";
  ASSERT_OK_AND_ASSIGN(const auto workload, NewFileWorkload(lines, {}, /*chat=*/true));
  const LoadRequest first = workload->Next(), second = workload->Next();
  ASSERT_EQ(first.messages.size(), 1u);
  EXPECT_EQ(first.messages[0].content, "hi");
  EXPECT_EQ(second.text, "a");
  EXPECT_THAT(std::string(NewFileWorkload(lines, {}).status().message()),
              HasSubstr("line 1: messages: for --endpoint=chat only"));
  const auto message = [](const char* text) {
    return std::string(NewFileWorkload(text, {}, /*chat=*/true).status().message());
  };
  EXPECT_THAT(message("{\"prompt\": [1]}"), HasSubstr("line 1: prompt: token ids"));
  EXPECT_THAT(message("{\"messages\": []}"), HasSubstr("line 1: messages: expected a list"));
  EXPECT_THAT(message("{\"messages\": [{\"role\": \"user\"}]}"), HasSubstr("line 1: messages"));
}

TEST(Workload, FilesAreReadOverAndOver) {
  ASSERT_OK_AND_ASSIGN(const auto workload,
                       NewFileWorkload("{\"prompt\": \"a\", \"max_tokens\": 3}\n\n"
                                       "{\"prompt\": [5, 6]}\n",
                                       {.output_tokens = {9, 9}}));
  const LoadRequest first = workload->Next(), second = workload->Next(), third = workload->Next();
  EXPECT_EQ(first.text, "a");
  EXPECT_EQ(first.max_tokens, 3);
  EXPECT_EQ(second.tokens, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(second.max_tokens, 9);
  EXPECT_EQ(third.text, "a");
  EXPECT_EQ(third.index, 2);
}

TEST(Workload, BadFilesAreRefusedByLine) {
  const auto message = [](const char* text) {
    return std::string(NewFileWorkload(text, {}).status().message());
  };
  EXPECT_THAT(message("{\"prompt\": \"a\"}\nnonsense\n"), HasSubstr("line 2: expected a JSON"));
  EXPECT_THAT(message("\n{\"prompt\": 5}"), HasSubstr("line 2: prompt: "));
  EXPECT_THAT(message("{\"prompt\": [1, \"x\"]}"), HasSubstr("line 1: prompt: expected token ids"));
  EXPECT_THAT(message("{\"prompt\": \"a\", \"max_tokens\": 0}"), HasSubstr("line 1: max_tokens"));
  EXPECT_THAT(message("\n"), HasSubstr("at least one line"));
}

}  // namespace
}  // namespace tandem::cli
