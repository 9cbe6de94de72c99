// Goal: the tokens in log-probabilities have the text that they have in the answer, spaces
// included; text_offset tells where each begins in the choice's text, whatever the decoder holds
// back.
#include "router/front_end/http/logprobs_json.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "common/model/byte_vocabulary.h"
#include "router/front_end/http/completion_format.h"
#include "router/front_end/http/completion_request.h"
#include "tests/golden/tokenizer/golden_files.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<model::Tokenizer> TinyTokenizer(absl::string_view name) {
  model::TokenizerSource source;
  source.tokenizer_json =
      model::ReadGzip(model::GoldenPath(absl::StrCat("tiny_", name, ".json.gz")));
  return model::Tokenizer::Create(source).value();
}

Json LogprobsOf(const model::Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                const CompletionLogprobs::TextOptions& text) {
  CompletionLogprobs logprobs({tokenizer}, /*top=*/0, text);
  for (const TokenId id : ids) {
    v1::GeneratedToken token;
    token.set_token_id(id);
    logprobs.Add(token);
  }
  return logprobs.Take();
}

// Characters, by their first bytes.
int64_t Characters(absl::string_view text) {
  int64_t characters = 0;
  for (const char byte : text) characters += (byte & 0xC0) != 0x80;
  return characters;
}

class LogprobsText : public ::testing::TestWithParam<const char*> {};

TEST_P(LogprobsText, TokensJoinToTheAnswer) {
  const auto tokenizer = TinyTokenizer(GetParam());
  const std::vector<TokenId> ids =
      tokenizer->Encode("the cat a the and", {.add_special_tokens = false});
  const std::vector<TokenId> answer(ids.begin() + 1, ids.end());
  model::StreamingDetokenizer stream(tokenizer.get(), {.continues_text = true});
  std::string text;
  for (const TokenId id : answer) stream.AppendTo(id, &text);
  text += stream.Flush();

  const Json json = LogprobsOf(*tokenizer, answer, {.continues_text = true});
  std::string joined;
  for (size_t i = 0; i < answer.size(); ++i) {
    EXPECT_EQ(json["text_offset"][i], Characters(joined)) << i;
    joined += json["tokens"][i].get<std::string>();
  }
  EXPECT_EQ(joined, text);
  EXPECT_THAT(text, ::testing::HasSubstr(" a the"));
}

INSTANTIATE_TEST_SUITE_P(Families, LogprobsText, ::testing::Values("llama2", "metaspace", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

TEST(LogprobsJson, ATokenWithASpaceIsAnotherThanOneWithout) {
  const auto tokenizer = TinyTokenizer("metaspace");
  v1::GeneratedToken token;
  token.set_token_id(*tokenizer->FindToken("▁a"));
  token.set_logprob(-1);
  v1::TokenLogprob& other = *token.add_top_logprobs();
  other.set_token_id(*tokenizer->FindToken("a"));
  other.set_logprob(-2);
  CompletionLogprobs logprobs({*tokenizer}, 1, {.continues_text = true});
  logprobs.Add(token);
  EXPECT_EQ(logprobs.Take()["top_logprobs"][0], (Json{{"a", -2.0}, {" a", -1.0}}));
  EXPECT_EQ(ChatLogprob({*tokenizer}, token, 1)["token"], " a");
}

TEST(LogprobsJson, OffsetsCountCharactersInParts) {
  const auto bytes = model::Tokenizer::Create(model::ByteVocabulary()).value();
  const Json json = LogprobsOf(*bytes, bytes->Encode("é!中?"), {.continues_text = false});
  EXPECT_THAT(json["text_offset"], ElementsAre(0, 0, 1, 2, 2, 2, 3));
  // Byte fallback holds a run of bytes back until it ends.
  const auto llama = TinyTokenizer("llama2");
  std::vector<TokenId> ids;
  for (const char* token :
       {"a", "<0x0A>", "<0x0A>", "a", "<0xC3>", "<0xA9>", "<0xC3>", "<0xA9>", "<0x41>", "a", "a"}) {
    ids.push_back(*llama->FindToken(token));
  }
  EXPECT_THAT(LogprobsOf(*llama, ids, {.continues_text = true})["text_offset"],
              ElementsAre(0, 1, 2, 3, 4, 4, 5, 5, 6, 7, 8));
}

TEST(LogprobsJson, OffsetsAreThoseOfAnEchoedPrompt) {
  const auto llama = TinyTokenizer("llama2");
  const std::vector<TokenId> ids = {*llama->FindToken("<s>"), *llama->FindToken("▁"),
                                    *llama->FindToken("a"), *llama->FindToken("▁"),
                                    *llama->FindToken("a")};
  // "a a"
  EXPECT_THAT(LogprobsOf(*llama, ids, {})["text_offset"], ElementsAre(0, 0, 0, 1, 2));
  // "<s> a a"
  EXPECT_THAT(LogprobsOf(*llama, ids, {.skip_special_tokens = false})["text_offset"],
              ElementsAre(0, 3, 4, 5, 6));
}

// With echo they are among the answer's log-probabilities, if it has some.
TEST(LogprobsJson, ThoseOfAPromptComeOnce) {
  const auto llama = TinyTokenizer("llama2");
  const auto choice = [&](const std::string& members) {
    const Json body = ParseJsonBody(absl::StrCat(R"({"prompt":"u")", members, "}")).value();
    ApiRequest api = ReadCompletion(body, false).value();
    api.prompts = api.requests.size();
    api.requests.clear();
    const auto format = NewCompletionFormat(api, {"id", 0, "m", "f"}, *llama);
    v1::GenerateResponse part;
    for (const int id : {5, 6, 7}) part.mutable_started()->add_prompt_token_ids(id);
    format->Add(0, part, nullptr);
    for (const int id : {6, 7}) {  // in two parts
      part.mutable_prompt_logprobs()->clear_tokens();
      part.mutable_prompt_logprobs()->add_tokens()->set_token_id(id);
      format->Add(0, part, nullptr);
    }
    part.mutable_finished();
    format->Add(0, part, nullptr);
    return ParseJsonBody(format->ToJson()).value()["choices"][0];
  };
  const Json echoed = choice(R"(,"echo":true,"logprobs":1)");
  EXPECT_EQ(echoed["logprobs"]["tokens"].size(), 3u);
  EXPECT_FALSE(echoed.contains("prompt_logprobs"));
  const Json alone = choice(R"(,"echo":true,"prompt_logprobs":1)");
  EXPECT_TRUE(alone["logprobs"].is_null());
  EXPECT_EQ(alone["prompt_logprobs"].size(), 3u);
  const Json both = choice(R"(,"logprobs":1,"prompt_logprobs":1)");
  EXPECT_EQ(both["logprobs"]["tokens"].size(), 0u);
  EXPECT_EQ(both["prompt_logprobs"].size(), 3u);
}

}  // namespace
}  // namespace tandem::router
