// Goal: every field of a request is checked with an error that names it, the value and what was
// expected; defaults are filled in.
#include "router/front_end/request_validation.h"

#include <functional>

#include "tests/testing/status_matchers.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

v1::GenerateRequest TestRequest() {
  v1::GenerateRequest request;
  request.set_request_id("r-1");
  request.mutable_tokens()->add_ids(1);
  return request;
}

TEST(ValidateRequest, NoAnswerIsOneWhereThePromptIsToldOf) {
  auto random = NewSeededRandom(1);
  for (const bool echo : {true, false}) {
    v1::GenerateRequest request = TestRequest();
    request.mutable_stop()->set_max_tokens(0);
    EXPECT_FALSE(IsPromptOnly(request));
    if (echo) request.set_echo(true);
    if (!echo) request.set_prompt_logprobs(0);
    EXPECT_TRUE(IsPromptOnly(request));
    ASSERT_OK_AND_ASSIGN(const RequestInput input,
                         ValidateRequest(request, Tokens(399), TestModel(), {2}, *random));
    EXPECT_EQ(input.stop->max_tokens, 1);
    request.mutable_stop()->set_max_tokens(1);
    EXPECT_FALSE(IsPromptOnly(request));
    request.mutable_stop()->clear_max_tokens();
    EXPECT_FALSE(IsPromptOnly(request));
  }
}

TEST(ValidateRequest, FillsDefaults) {
  auto random = NewSeededRandom(1);
  v1::GenerateRequest request = TestRequest();
  request.clear_request_id();
  request.set_cache_salt("tenant");
  ASSERT_OK_AND_ASSIGN(const RequestInput input,
                       ValidateRequest(request, Tokens(30), TestModel(), {2}, *random));
  EXPECT_EQ(input.id.value().size(), 34u);
  EXPECT_EQ(input.stop->max_tokens, 370);
  EXPECT_FALSE(input.max_tokens_given);
  EXPECT_EQ(input.eos_token_ids, std::vector<TokenId>{2});
  EXPECT_EQ(input.cache_salt, "tenant");
  ASSERT_OK_AND_ASSIGN(const RequestInput again,
                       ValidateRequest(request, Tokens(30), TestModel(), {2}, *random));
  EXPECT_NE(input.id, again.id);
  EXPECT_NE(input.sampling->seed, again.sampling->seed);
}

TEST(ValidateRequest, BoundsTheTokensOfASearch) {
  auto random = NewSeededRandom(1);
  ModelIdentity model = TestModel();
  model.context_tokens = 200'000;
  v1::GenerateRequest request = TestRequest();
  request.mutable_beam_search()->set_width(2);
  request.mutable_sampling()->set_temperature(0);
  ASSERT_OK_AND_ASSIGN(const RequestInput input,
                       ValidateRequest(request, Tokens(30), model, {2}, *random));
  EXPECT_EQ(input.stop->max_tokens, kBeamTokensMax);
  request.mutable_stop()->set_max_tokens(kBeamTokensMax);
  EXPECT_OK(ValidateRequest(request, Tokens(30), model, {2}, *random));
  request.mutable_stop()->set_max_tokens(kBeamTokensMax + 1);
  EXPECT_THAT(
      ValidateRequest(request, Tokens(30), model, {2}, *random),
      testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_tokens: 65536")));
}

TEST(ValidateRequest, KeepsWhatWasGiven) {
  auto random = NewSeededRandom(1);
  v1::GenerateRequest request = TestRequest();
  request.set_model("toy");
  request.set_n(1);
  request.mutable_sampling()->set_seed(0);
  request.mutable_sampling()->set_logprobs(20);
  request.mutable_stop()->set_max_tokens(370);
  ASSERT_OK_AND_ASSIGN(const RequestInput input,
                       ValidateRequest(request, Tokens(30), TestModel(), {2}, *random));
  EXPECT_EQ(input.id.value(), "r-1");
  EXPECT_EQ(input.sampling->seed, 0u);
  EXPECT_EQ(input.stop->max_tokens, 370);
  EXPECT_TRUE(input.max_tokens_given);
  EXPECT_EQ(*input.prompt, Tokens(30));
}

TEST(ValidateRequest, TakesTheServedNamesAndTheModelsOwn) {
  ModelIdentity model = TestModel();
  EXPECT_EQ(model.served_name(), "toy");
  model.served_names = {"first", "second"};
  EXPECT_EQ(model.served_name(), "first");
  v1::GenerateRequest request = TestRequest();
  for (const char* name : {"first", "second", "toy"}) {
    request.set_model(name);
    EXPECT_OK(ValidateEnvelope(request, model)) << name;
  }
  request.set_model("third");
  EXPECT_THAT(std::string(ValidateEnvelope(request, model).message()),
              HasSubstr("this router serves \"first\""));
}

TEST(ValidateRequest, ALongNameOfAModelIsNotRepeated) {
  v1::GenerateRequest request = TestRequest();
  const auto message = [&](size_t bytes) {
    request.set_model(std::string(bytes, 'x'));
    return std::string(ValidateEnvelope(request, TestModel()).message());
  };
  EXPECT_EQ(message(128), "model: \"" + std::string(128, 'x') +
                              "\" is not served here, this router serves \"toy\"");
  EXPECT_EQ(message(129),
            "model: a text of 129 bytes is not served here, this router serves \"toy\"");
}

TEST(ValidateRequest, NamesWhatIsWrong) {
  struct Case {
    std::function<void(v1::GenerateRequest&)> spoil;
    absl::StatusCode code;
    std::vector<std::string> names;
    std::vector<TokenId> prompt = Tokens(30);
  };
  const auto kBad = absl::StatusCode::kInvalidArgument;
  const auto nothing = [](v1::GenerateRequest&) {};
  const std::vector<Case> cases = {
      {[](auto& r) { r.set_request_id(std::string(129, 'x')); },
       kBad,
       {"request_id", "129", "128"}},
      {[](auto& r) { r.set_cache_salt(std::string(1025, 'x')); }, kBad, {"cache_salt", "1025"}},
      {[](auto& r) { r.set_model("gpt"); }, absl::StatusCode::kNotFound, {"gpt", "toy"}},
      {[](auto& r) { r.set_n(0); }, kBad, {"n: 0"}},
      {[](auto& r) { r.set_n(129); }, kBad, {"n: 129", "128"}},
      {[](auto& r) { r.clear_prompt(); }, kBad, {"prompt: missing"}},
      {nothing, kBad, {"prompt: empty"}, {}},
      {nothing, kBad, {"prompt: 400 tokens", "context", "400 tokens"}, Tokens(400)},
      {nothing, kBad, {"token 1 is 1000", "[0, 1000)"}, {5, 1000}},
      {nothing, kBad, {"token 0 is -1"}, {-1}},
      {[](auto& r) { r.mutable_stop()->set_max_tokens(371); },
       kBad,
       {"max_tokens: 371", "30", "400"}},
      {[](auto& r) { r.mutable_stop()->set_max_tokens(0); }, kBad, {"max_tokens: 0"}},
      {[](auto& r) { r.mutable_stop()->add_stop(""); }, kBad, {"stop[0]: 0 bytes"}},
      {[](auto& r) { r.mutable_stop()->add_stop(std::string(1025, 'x')); },
       kBad,
       {"stop[0]: 1025"}},
      {[](auto& r) {
         for (int i = 0; i < 65; ++i) r.mutable_stop()->add_stop("x");
       },
       kBad,
       {"stop: 65 strings"}},
      {[](auto& r) { r.mutable_stop()->add_stop_token_ids(1000); },
       kBad,
       {"stop_token_ids", "1000"}},
      {[](auto& r) { r.mutable_sampling()->set_temperature(-1); }, kBad, {"temperature: -1"}},
      {[](auto& r) { r.mutable_sampling()->set_top_p(1.5); }, kBad, {"top_p: 1.5"}},
      {[](auto& r) { r.mutable_sampling()->set_logprobs(21); }, kBad, {"logprobs: 21", "20"}},
  };
  auto random = NewSeededRandom(1);
  for (const Case& c : cases) {
    v1::GenerateRequest request = TestRequest();
    c.spoil(request);
    const absl::Status status =
        ValidateRequest(request, c.prompt, TestModel(), {2}, *random).status();
    EXPECT_EQ(status.code(), c.code) << status << " for " << c.names[0];
    for (const std::string& name : c.names)
      EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

// Before they wait for the compiler, or are remembered as refused.
TEST(ValidateRequest, RefusesConstraintsThatAreTooLarge) {
  auto random = NewSeededRandom(1);
  const auto refusal = [&](const v1::GenerateRequest& request) {
    return ValidateRequest(request, Tokens(30), TestModel(), {2}, *random).status();
  };
  const auto says = [](const char* text) {
    return testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  v1::GenerateRequest request = TestRequest();
  request.mutable_guided()->set_regex(std::string(262144, 'x'));
  EXPECT_OK(refusal(request));
  request.mutable_guided()->set_regex(std::string(262145, 'x'));
  EXPECT_THAT(refusal(request),
              says("guided: constraint of 262145 bytes, expected at most 262144"));
  auto& options = *request.mutable_guided()->mutable_choice()->mutable_options();
  options.Add(std::string(262145, 'x'));
  EXPECT_THAT(refusal(request),
              says("guided: choice: 262145 bytes in all, expected at most 262144"));
  options.Clear();
  for (int i = 0; i < 20001; ++i) options.Add("x");
  EXPECT_THAT(refusal(request), says("guided: choice: 20001 options, expected 1 to 20000"));
}

}  // namespace
}  // namespace tandem::router
