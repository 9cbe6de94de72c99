// Goal: what a request may ask for beside its tokens does what client.proto says: best_of, bad
// words, min_tokens, echo, resuming, prompt log-probabilities; with and without prefill nodes, the
// same bits.
#include <gmock/gmock.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/model/byte_vocabulary.h"
#include "tests/integration/sequences/answers.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

class RequestOptions : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(
        cluster_, TestCluster::Start({"--engine=hash", "--single-process", GetParam(), "--decode=2",
                                      "--kv-blocks=512", "--max-batch-tokens=40",
                                      "--hash-eos-every=20", "--local-prefill-tokens=0"}));
  }
  void TearDown() override {
    EXPECT_OK(AwaitQuiet(cluster_->client(), absl::Seconds(15)).status());
  }
  v1::GenerateRequest Request(int prompt_tokens = 100, int max_tokens = 60) {
    v1::GenerateRequest request;
    for (int i = 0; i < prompt_tokens; ++i)
      request.mutable_tokens()->add_ids('a' + (i * 7 + salt_) % 26);
    ++salt_;
    request.mutable_sampling()->set_seed(5);
    request.mutable_sampling()->set_logprobs(1);
    request.mutable_stop()->set_max_tokens(max_tokens);
    request.mutable_stop()->set_ignore_eos(true);
    return request;
  }
  AnswersOf Ask(const v1::GenerateRequest& request) { return AskAll(cluster_->client(), request); }

  std::unique_ptr<TestCluster> cluster_;
  int salt_ = 0;
  static inline std::map<std::string, std::string> seen_bits_;  // by topology
};

TEST_P(RequestOptions, BestOfReturnsTheLikeliest) {
  v1::GenerateRequest request = Request(100, 10);
  request.set_n(6);
  const AnswersOf all = Ask(request);
  ASSERT_OK(all.status);
  request.set_n(2);
  request.set_best_of(6);
  const AnswersOf best = Ask(request);
  ASSERT_OK(best.status);
  ASSERT_EQ(best.by_index.size(), 2u);

  // From each answer's own log-probabilities, independently of the router's sum.
  std::vector<std::pair<double, int>> order;
  for (const auto& [index, answer] : all.by_index) {
    double sum = 0;
    for (absl::string_view token : absl::StrSplit(answer.bits, " | ", absl::SkipEmpty())) {
      uint32_t raw = 0;
      ASSERT_TRUE(absl::SimpleAtoi(
          token.substr(token.find(':') + 1, token.find(' ') - token.find(':') - 1), &raw));
      float logprob = 0;
      std::memcpy(&logprob, &raw, sizeof(raw));
      sum += logprob;
    }
    order.emplace_back(-sum, index);
  }
  std::sort(order.begin(), order.end());
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(best.by_index.at(rank).bits, all.by_index.at(order[rank].second).bits) << rank;
  EXPECT_EQ(best.by_index.at(0).finished.usage().prompt_tokens(), 100);
  EXPECT_EQ(best.by_index.at(1).finished.usage().prompt_tokens(), 0);
}

TEST_P(RequestOptions, NothingEndsAnAnswerBeforeMinTokens) {
  int short_ones = 0;
  for (int i = 0; i < 6; ++i) {
    v1::GenerateRequest request = Request();
    request.mutable_stop()->set_ignore_eos(false);
    const AnswersOf free = Ask(request);
    ASSERT_OK(free.status);
    short_ones += free.by_index.at(0).tokens.size() < 40;
    request.mutable_stop()->set_min_tokens(40);
    const AnswersOf held = Ask(request);
    ASSERT_OK(held.status);
    const std::vector<int32_t>& tokens = held.by_index.at(0).tokens;
    EXPECT_GE(tokens.size(), 40u);
    EXPECT_EQ(std::count(tokens.begin(), tokens.begin() + 40, model::kByteEndToken), 0);
  }
  EXPECT_GT(short_ones, 0) << "nothing would have ended early: the test shows nothing";
}

TEST_P(RequestOptions, BadWordsAreNotGenerated) {
  const v1::GenerateRequest request = Request(100, 400);
  const AnswersOf free = Ask(request);
  ASSERT_OK(free.status);
  const std::string& text = free.by_index.at(0).text;
  ASSERT_GT(text.size(), 300u);
  // One letter, and a pair that occurs: text is bytes here.
  const std::string letter = text.substr(100, 1), pair = text.substr(50, 2);
  v1::GenerateRequest banned = request;
  banned.add_bad_words(letter);
  banned.add_bad_words(pair);
  const AnswersOf without = Ask(banned);
  ASSERT_OK(without.status);
  const std::string& other = without.by_index.at(0).text;
  EXPECT_EQ(other.find(letter), std::string::npos);
  EXPECT_EQ(other.find(pair), std::string::npos);
  const size_t same = std::min(text.find(letter), text.find(pair) + 1);
  EXPECT_EQ(other.substr(0, same), text.substr(0, same));
}

TEST_P(RequestOptions, BansThatLeaveNothingGiveWay) {
  v1::GenerateRequest request = Request(40, 5);
  request.mutable_sampling()->add_allowed_token_ids('x');
  request.add_bad_words("x");
  const AnswersOf answers = Ask(request);
  ASSERT_OK(answers.status);
  EXPECT_EQ(answers.by_index.at(0).text, "xxxxx");
}

TEST_P(RequestOptions, SpecialTokensAreLeftOutUnlessKept) {
  v1::GenerateRequest request = Request(40, 3);
  request.mutable_sampling()->add_allowed_token_ids(model::kByteStartToken);
  const AnswersOf plain = Ask(request);
  ASSERT_OK(plain.status);
  EXPECT_EQ(plain.by_index.at(0).text, "");
  request.set_keep_special_tokens(true);
  const AnswersOf kept = Ask(request);
  ASSERT_OK(kept.status);
  EXPECT_EQ(kept.by_index.at(0).text, "<|im_start|><|im_start|><|im_start|>");
}

TEST_P(RequestOptions, EchoPutsThePromptFirst) {
  v1::GenerateRequest request = Request(50, 5);
  request.set_n(2);
  const AnswersOf plain = Ask(request);
  ASSERT_OK(plain.status);
  request.set_echo(true);
  const AnswersOf echoed = Ask(request);
  ASSERT_OK(echoed.status);
  const std::string prompt(request.tokens().ids().begin(), request.tokens().ids().end());
  for (const int index : {0, 1})
    EXPECT_EQ(echoed.by_index.at(index).text, prompt + plain.by_index.at(index).text);
}

TEST_P(RequestOptions, AResumedCallGoesOnWhereItBrokeOff) {
  v1::GenerateRequest request = Request(50, 30);
  // Tokens that are halves of characters: the text must not be cut inside one.
  for (const int byte : {0xc3, 0xa4, 0xa9, 0x78})
    request.mutable_sampling()->add_allowed_token_ids(byte);
  request.mutable_stop()->add_stop("xxx\xc3\xa4");
  std::vector<std::string> texts;  // [i]: what came with tokens up to i
  std::string whole, bits;
  ASSERT_OK(cluster_->client().Generate(request, [&](const v1::GenerateResponse& part) {
    if (!part.has_delta()) return true;
    whole += part.delta().text();
    for (const auto& token : part.delta().tokens()) AppendBits(token, bits);
    texts.resize(texts.size() + part.delta().tokens_size(), whole);
    return true;
  }));
  for (size_t have = 1; have <= texts.size(); ++have) {
    // Known only where a message ended with that token.
    if (have < texts.size() && texts[have] == texts[have - 1]) continue;
    request.set_resume_from_token(static_cast<int>(have));
    const AnswersOf rest = Ask(request);
    ASSERT_OK(rest.status);
    const OneAnswer& answer = rest.by_index.at(0);
    EXPECT_EQ(texts[have - 1] + answer.text, whole) << have;
    EXPECT_EQ(answer.tokens.size(), texts.size() - have);
    EXPECT_TRUE(absl::EndsWith(bits, answer.bits));
    EXPECT_EQ(answer.finished.usage().output_tokens(), static_cast<int>(texts.size()));
  }
}

TEST_P(RequestOptions, SeveralAnswersResumeEachAtItsOwnToken) {
  v1::GenerateRequest request = Request(50, 30);
  request.set_n(3);
  request.mutable_sampling()->set_temperature(1);
  const AnswersOf whole = Ask(request);
  ASSERT_OK(whole.status);
  for (const std::vector<int>& from : {std::vector<int>{0, 30, 7}, {29, 1, 0}, {30, 30, 30}}) {
    request.mutable_resume_from_tokens()->Assign(from.begin(), from.end());
    const AnswersOf rest = Ask(request);
    ASSERT_OK(rest.status);
    ASSERT_EQ(rest.by_index.size(), 3u) << "each answer sends its end";
    for (const int index : {0, 1, 2}) {
      const OneAnswer& all = whole.by_index.at(index);
      const OneAnswer& later = rest.by_index.at(index);
      const std::vector<int> expected(all.tokens.begin() + from[static_cast<size_t>(index)],
                                      all.tokens.end());
      EXPECT_EQ(std::vector<int>(later.tokens.begin(), later.tokens.end()), expected) << index;
      EXPECT_TRUE(absl::EndsWith(all.text, later.text));
      EXPECT_TRUE(absl::EndsWith(all.bits, later.bits));
      EXPECT_EQ(later.finished.usage().output_tokens(), 30);
    }
  }
}

TEST_P(RequestOptions, PromptScoresComeWholeWhateverIsCached) {
  v1::GenerateRequest request = Request(150, 5);
  const AnswersOf warm = Ask(request);  // now the prompt lies in caches
  ASSERT_OK(warm.status);
  request.set_prompt_logprobs(2);
  request.set_n(3);
  const AnswersOf first = Ask(request), again = Ask(request);
  for (const AnswersOf* answers : {&first, &again}) {
    ASSERT_OK(answers->status);
    EXPECT_EQ(answers->prompt_scored, 149);
    EXPECT_EQ(answers->deltas_before_scores, 0);
    EXPECT_EQ(answers->Bits(), first.Bits());
    EXPECT_EQ(answers->by_index.at(0).bits, warm.by_index.at(0).bits);
  }
  v1::GenerateRequest one_token = Request(1, 5);
  one_token.set_prompt_logprobs(0);
  const AnswersOf none = Ask(one_token);
  ASSERT_OK(none.status);
  EXPECT_EQ(none.prompt_scored, 0);
}

// What the beams are is golden_generation's; here, that the steps of a search over nodes are those
// of a search in one place: the likeliest first, every answer's tokens one after the other.
TEST_P(RequestOptions, BeamSearchGivesItsBestAnswers) {
  v1::GenerateRequest request = Request(100, 40);
  request.mutable_sampling()->clear_seed();
  request.mutable_beam_search()->set_width(3);
  request.set_n(2);
  const AnswersOf first = Ask(request), again = Ask(request);
  ASSERT_OK(first.status);
  ASSERT_EQ(first.by_index.size(), 2u);
  EXPECT_EQ(first.Bits(), again.Bits());
  for (const auto& [index, answer] : first.by_index) {
    EXPECT_EQ(answer.tokens.size(), 40u);
    EXPECT_EQ(answer.ends, 1);
    EXPECT_EQ(answer.finished.usage().output_tokens(), 40);
    EXPECT_EQ(answer.finished.usage().prompt_tokens(), index == 0 ? 100 : 0);
    EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_LENGTH);
  }
  request.mutable_beam_search()->set_width(1);
  request.set_n(1);
  const AnswersOf narrow = Ask(request);
  ASSERT_OK(narrow.status);
  EXPECT_EQ(narrow.by_index.at(0).tokens.size(), 40u);
  seen_bits_[GetParam()] = first.Bits() + narrow.Bits();
  for (const auto& [topology, bits] : seen_bits_) EXPECT_EQ(bits, seen_bits_.begin()->second);
}

// Without max_tokens an answer ends where the largest decode node is full, a search's too.
TEST(BeamSearch, WithoutMaxTokensEndsWhereTheNodeIsFull) {
  ASSERT_OK_AND_ASSIGN(auto cluster,
                       TestCluster::Start({"--engine=hash", "--single-process", "--prefill=1",
                                           "--decode=1", "--kv-blocks=8"}));
  v1::GenerateRequest request;
  for (int i = 0; i < 100; ++i) request.mutable_tokens()->add_ids(i * 7 % 256);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_ignore_eos(true);
  for (const int width : {0, 1, 3}) {
    if (width > 0) request.mutable_beam_search()->set_width(width);
    const AnswersOf all = AskAll(cluster->client(), request);
    ASSERT_OK(all.status) << "width " << width;
    EXPECT_EQ(all.by_index.at(0).finished.usage().output_tokens(), 8 * 32 - 100);
    EXPECT_EQ(all.by_index.at(0).finished.reason(), v1::FINISH_REASON_LENGTH);
  }
  EXPECT_OK(AwaitQuiet(cluster->client(), absl::Seconds(15)).status());
}

TEST_P(RequestOptions, ACancelledSearchLeavesNothingBehind) {
  v1::GenerateRequest request = Request(200, 4000);
  request.mutable_sampling()->clear_seed();
  request.mutable_beam_search()->set_width(4);
  request.set_deadline_s(0.2);
  const AnswersOf late = Ask(request);
  EXPECT_EQ(late.status.code(), absl::StatusCode::kDeadlineExceeded) << late.status;
}

INSTANTIATE_TEST_SUITE_P(Topologies, RequestOptions,
                         ::testing::Values("--prefill=0", "--prefill=2"),
                         [](const auto& info) { return info.index == 0 ? "Alone" : "Apart"; });

}  // namespace
}  // namespace tandem::testing
