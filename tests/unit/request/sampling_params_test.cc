// Goal: every field out of range is refused by name, values on the border are not, and an answer
// ends exactly where its stop conditions say.
#include "common/request/sampling_params.h"

#include <cmath>
#include <functional>
#include <limits>

#include "tests/testing/status_matchers.h"

namespace tandem::request {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kVocab = 100;

TEST(SamplingParams, DefaultsAndBordersAreValid) {
  EXPECT_OK(Validate(SamplingParams{}, kVocab));
  SamplingParams borders{.temperature = 0,
                         .top_p = 1e-9,
                         .min_p = 1,
                         .presence_penalty = -2,
                         .frequency_penalty = 2,
                         .logit_bias = {{0, -100.f}, {99, 100.f}},
                         .allowed_token_ids = {0, 99},
                         .logprobs = 20};
  EXPECT_OK(Validate(borders, kVocab));
}

TEST(SamplingParams, EachFieldOutOfRangeIsNamed) {
  const double nan = std::nan("");
  const std::vector<std::pair<std::string, std::function<void(SamplingParams&)>>> cases = {
      {"temperature", [](auto& p) { p.temperature = -0.1; }},
      {"temperature", [&](auto& p) { p.temperature = nan; }},
      {"temperature", [](auto& p) { p.temperature = std::numeric_limits<double>::infinity(); }},
      {"top_k: -2", [](auto& p) { p.top_k = -2; }},
      {"top_p", [](auto& p) { p.top_p = -0.5; }},
      {"top_p", [](auto& p) { p.top_p = 1.01; }},
      {"min_p", [](auto& p) { p.min_p = -0.01; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = 0; }},
      {"presence_penalty", [](auto& p) { p.presence_penalty = 2.1; }},
      {"frequency_penalty", [&](auto& p) { p.frequency_penalty = nan; }},
      {"logit_bias: token 100",
       [](auto& p) {
         p.logit_bias = {{100, 1.f}};
       }},
      {"logit_bias of token 3",
       [](auto& p) {
         p.logit_bias = {{3, 101.f}};
       }},
      {"logit_bias: token 3 after 3",
       [](auto& p) {
         p.logit_bias = {{3, 1.f}, {3, 2.f}};
       }},
      {"allowed_token_ids: token -1", [](auto& p) { p.allowed_token_ids = {-1}; }},
      {"allowed_token_ids: token 2 after 5",
       [](auto& p) {
         p.allowed_token_ids = {5, 2};
       }},
      {"logprobs: 21", [](auto& p) { p.logprobs = 21; }},
  };
  for (const auto& [name, spoil] : cases) {
    SamplingParams params;
    spoil(params);
    EXPECT_THAT(Validate(params, kVocab),
                testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  }
}

TEST(StopParams, EachFieldOutOfRangeIsNamed) {
  const std::vector<std::pair<std::string, std::function<void(StopParams&)>>> cases = {
      {"max_tokens: 0", [](auto& p) { p.max_tokens = 0; }},
      {"min_tokens: -1", [](auto& p) { p.min_tokens = -1; }},
      {"min_tokens: 5", [](auto& p) { p.min_tokens = 5; }},
      {"stop[1]",
       [](auto& p) {
         p.stop = {"a", ""};
       }},
      {"stop: 65 strings", [](auto& p) { p.stop.assign(65, "x"); }},
      {"stop_token_ids: token 100", [](auto& p) { p.stop_token_ids = {100}; }},
  };
  EXPECT_OK(Validate(StopParams{.max_tokens = 4, .min_tokens = 4}, kVocab));
  for (const auto& [name, spoil] : cases) {
    StopParams params{.max_tokens = 4};
    spoil(params);
    EXPECT_THAT(Validate(params, kVocab),
                testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  }
}

TEST(CheckStop, EndsByStopTokenEndOfSequenceAndLengthInThatOrder) {
  StopParams params{.max_tokens = 5, .min_tokens = 2, .stop_token_ids = {7, 9}};
  const std::vector<TokenId> eos = {3, 1};
  EXPECT_EQ(CheckStop(params, eos, 9, 1), FinishReason::kNone);  // before min_tokens
  EXPECT_EQ(CheckStop(params, eos, 9, 2), FinishReason::kStop);
  EXPECT_EQ(CheckStop(params, eos, 1, 2), FinishReason::kStop);
  EXPECT_EQ(CheckStop(params, eos, 8, 4), FinishReason::kNone);
  EXPECT_EQ(CheckStop(params, eos, 8, 5), FinishReason::kLength);
  EXPECT_EQ(CheckStop(params, eos, 1, 5), FinishReason::kStop);
  params.ignore_eos = true;
  EXPECT_EQ(CheckStop(params, eos, 1, 2), FinishReason::kNone);
  EXPECT_EQ(CheckStop(params, eos, 7, 2), FinishReason::kStop);
}

}  // namespace
}  // namespace tandem::request
