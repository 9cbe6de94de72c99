// Goal: with decoders that drop a text's first space (SentencePiece's), an answer goes on with its
// prompt's text, a constrained answer is what its constraint allows, and an unconstrained message
// of a chat begins without a space; streamed or whole, and for stop strings too.
#include <gmock/gmock.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/golden/tokenizer/golden_files.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/http/front_end_parts.h"

namespace tandem::router {
namespace {

using ::tandem::testing::Ask;
using ::tandem::testing::HttpAnswer;
using ::tandem::testing::PostOf;

std::unique_ptr<ModelAssets> AssetsOfTiny(absl::string_view tiny_tokenizer) {
  model::TokenizerSource source;
  source.tokenizer_json =
      model::ReadGzip(model::GoldenPath(absl::StrCat("tiny_", tiny_tokenizer, ".json.gz")));
  auto assets = std::make_unique<ModelAssets>();
  assets->tokenizer = model::Tokenizer::Create(source).value();
  assets->identity = {"m", "f", assets->tokenizer->vocab_size(), 4096};
  assets->constraints =
      std::make_unique<guided::ConstraintChecker>(guided::Vocabulary::FromTokenizer(
          *assets->tokenizer, assets->identity.vocab_size, assets->eos_token_ids));
  assets->prompt_bytes_max = 1 << 20;
  EXPECT_OK(assets->UseChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}"));
  return assets;
}

// A front end whose core answers every request with the same tokens.
class AnswerText : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(http_,
                         StartHttp(parts_.Session(inbox_, constraints_, long_work_), status_));
    // Takes over from a thread that has run the core for several requests on end.
    core_ = std::thread([this] { inbox_.RunFallback(absl::Milliseconds(20)); });
  }
  void TearDown() override {
    if (http_ != nullptr) http_->Stop();
    inbox_.Close();
    if (core_.joinable()) core_.join();
  }

  // Tokens with this text: at each place the longest token that fits.
  std::vector<TokenId> TokensOf(absl::string_view text) const {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      TokenId best = -1;
      size_t length = 0;
      for (TokenId id = 0; id < parts_.assets->tokenizer->vocab_size(); ++id) {
        const std::string bytes = parts_.assets->tokenizer->TokenBytes(id);
        if (bytes.size() <= length || !absl::StartsWith(text, bytes)) continue;
        best = id;
        length = bytes.size();
      }
      if (best < 0) ADD_FAILURE() << "no token begins " << text;
      if (best < 0) break;
      ids.push_back(best);
      text.remove_prefix(length);
    }
    return ids;
  }

  // The text of the answer to `body` whose tokens are `ids`, which is the same when it is streamed.
  std::string TextOf(std::vector<TokenId> ids, absl::string_view body) {
    answer_ = std::move(ids);
    const bool chat = absl::StrContains(body, "messages");
    const std::string path = chat ? "/v1/chat/completions" : "/v1/completions";
    const HttpAnswer whole = Ask(http_->address(), PostOf(path, absl::StrCat("{", body, "}")));
    EXPECT_EQ(whole.status, 200) << whole.body;
    if (whole.status != 200) return whole.body;
    const auto text_in = [&](const nlohmann::json& choice, const char* message) {
      return chat ? choice[message].value("content", "") : choice.value("text", "");
    };
    const std::string text = text_in(whole.Json()["choices"][0], "message");
    const HttpAnswer events =
        Ask(http_->address(), PostOf(path, absl::StrCat("{\"stream\":true,", body, "}")));
    std::string streamed;
    for (absl::string_view line : absl::StrSplit(events.body, '\n')) {
      if (!absl::ConsumePrefix(&line, "data: ") || !absl::StartsWith(line, "{")) continue;
      streamed += text_in(nlohmann::json::parse(line)["choices"][0], "delta");
    }
    EXPECT_EQ(streamed, text);
    return text;
  }

  FrontEndParts parts_{AssetsOfTiny(GetParam())};
  std::vector<TokenId> answer_;
  Inbox inbox_{4096, [this](std::vector<InboxItem>& items) {
                 for (InboxItem& item : items) {
                   auto* submit = std::get_if<SubmitRequest>(&item);
                   if (submit != nullptr) Answer(*submit->session);
                 }
               }};
  guided::CompileQueue constraints_{[this](const request::GuidedParams& params) {
    static_cast<void>(parts_.assets->constraints->Check(params));
  }};
  LongWork long_work_;
  StatusBoard status_{inbox_};
  std::unique_ptr<HttpApi> http_;
  std::thread core_;

 private:
  void Answer(AnswerSession& session) const {
    session.Accepted();
    int32_t index = 0;
    bool stopped = false;
    for (const TokenId id : answer_) {
      if (stopped) break;
      TokensReady ready;
      ready.tokens.emplace_back().set_token_id(id);
      ready.tokens[0].set_index(index++);
      stopped = session.OnEvent(std::move(ready)) == request::FinishReason::kStop;
    }
    SequenceDone done;
    done.reason = stopped ? request::FinishReason::kStop : request::FinishReason::kLength;
    session.OnEvent(std::move(done));
    session.Flush(/*inline_ok=*/false);
  }
};

constexpr char kChatBody[] = R"("messages":[{"role":"user","content":"the"}])";

TEST_P(AnswerText, GoesOnWithThePromptsText) {
  const model::Tokenizer& tokenizer = *parts_.assets->tokenizer;
  const std::vector<TokenId> all = tokenizer.Encode("the cat and a", {.add_special_tokens = false});
  for (size_t cut = 1; cut < all.size(); ++cut) {
    const std::vector<TokenId> prompt(all.begin(), all.begin() + static_cast<int64_t>(cut));
    const std::vector<TokenId> answer(all.begin() + static_cast<int64_t>(cut), all.end());
    const std::string before = tokenizer.Decode(prompt, true);
    const std::string body = absl::StrCat("\"prompt\":[", absl::StrJoin(prompt, ","), "]");
    const std::string text = TextOf(answer, body);
    EXPECT_EQ(before + text, "the cat and a") << cut;
    EXPECT_EQ(TextOf(answer, body + ",\"echo\":true"), "the cat and a") << cut;
  }
  const std::vector<TokenId> answer = TokensOf(" a cat");
  EXPECT_EQ(TextOf(answer, R"("prompt":"the")"), " a cat");
  EXPECT_EQ(TextOf(answer, R"("prompt":"the","echo":true)"), "the a cat");
  EXPECT_EQ(TextOf(answer, R"("prompt":"the","stop":[" a"])"), "");
  // A special token has no text that the answer could go on with.
  EXPECT_EQ(TextOf(answer, R"("prompt":[0])"), "a cat");
}

// `text_offset` of the second token: behind " a", or behind "a" where the answer begins a text.
TEST_P(AnswerText, OffsetsAreThoseOfTheText) {
  answer_ = TokensOf(" a cat");
  const auto second = [&](const std::string& prompt) {
    const HttpAnswer answer =
        Ask(http_->address(), PostOf("/v1/completions", absl::StrCat("{", prompt, "}")));
    return answer.Json()["choices"][0]["logprobs"]["text_offset"].at(1).get<int>();
  };
  const auto first = static_cast<int>(parts_.assets->tokenizer->TokenBytes(answer_[0]).size());
  EXPECT_EQ(second(R"("prompt":"the","logprobs":0)"), first);
  EXPECT_EQ(second(R"("prompt":[0],"logprobs":0)"), first - 1);
  EXPECT_EQ(second(R"("prompt":[0],"logprobs":0,"guided_choice":[" a cat"])"), first);
}

TEST_P(AnswerText, TellsWhichTokenEndedIt) {
  answer_ = TokensOf(" a cat");
  const std::string stop = absl::StrCat(",\"stop_token_ids\":[", answer_[1], "]");
  const auto stop_reason = [&](const char* path, const std::string& body) {
    const HttpAnswer answer = Ask(http_->address(), PostOf(path, absl::StrCat("{", body, "}")));
    return answer.Json()["choices"][0]["stop_reason"];
  };
  for (const std::string& body : {std::string(R"("prompt":"the")"), std::string(kChatBody)}) {
    const bool chat = body == kChatBody;
    const char* path = chat ? "/v1/chat/completions" : "/v1/completions";
    EXPECT_EQ(stop_reason(path, body + stop), answer_[1]);
    EXPECT_EQ(stop_reason(path, body), nullptr);
  }
}

TEST_P(AnswerText, OfAChatIsATextOfItsOwn) {
  const std::vector<TokenId> answer = TokensOf(" a cat");
  EXPECT_EQ(TextOf(answer, kChatBody), "a cat");
  EXPECT_EQ(TextOf(answer, R"("continue_final_message":true,
      "messages":[{"role":"user","content":"x"},{"role":"assistant","content":"the"}])"),
            " a cat");
}

TEST_P(AnswerText, IsWhatItsConstraintAllows) {
  const std::vector<TokenId> answer = TokensOf(" a cat");
  for (const std::string& prompt :
       {std::string(R"("prompt":"the")"), std::string(R"("prompt":[0])"), std::string(kChatBody)}) {
    EXPECT_EQ(TextOf(answer, prompt + R"(,"guided_choice":[" a cat"," no"])"), " a cat");
    EXPECT_EQ(TextOf(answer, prompt + R"(,"guided_regex":" [a-z] cat")"), " a cat");
  }
}

INSTANTIATE_TEST_SUITE_P(SentencePiece, AnswerText, ::testing::Values("llama2", "metaspace"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tandem::router
