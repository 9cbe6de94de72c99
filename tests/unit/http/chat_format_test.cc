// Goal: white space between the calls of a chat's message is not its content, streamed or whole.
#include "router/front_end/http/chat_format.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "router/front_end/http/chat_request.h"
#include "router/front_end/model_assets.h"

namespace tandem::router {
namespace {

constexpr char kToolChat[] = R"({"messages":[{"role":"user","content":"u"}],"tools":[
    {"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"stream":)";

// The events of the answer `text`, or its whole object.
std::string Formatted(bool stream, const std::string& text, size_t piece) {
  const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  const Json body = ParseJsonBody(absl::StrCat(kToolChat, stream ? "true}" : "false}")).value();
  ApiRequest api = ReadChat(body, *assets, absl::UnixEpoch(), false).value();
  api.prompts = api.requests.size();
  api.requests.clear();
  const auto format = NewChatFormat(std::move(api), {"id", 0, "hash", "f"}, *assets->tokenizer);
  std::string events;
  std::string* const to = stream ? &events : nullptr;
  v1::GenerateResponse part;
  part.mutable_started();
  format->Add(0, part, to);
  for (size_t at = 0; at < text.size(); at += piece) {
    format->AddText(0, 0, absl::string_view(text).substr(at, piece), to);
  }
  part.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
  format->Add(0, part, to);
  return stream ? events : format->ToJson();
}

TEST(ChatFormat, BlanksBetweenCallsAreNotContent) {
  const std::string call = "<tool_call>\n{\"name\":\"f\"}\n</tool_call>";
  const std::string text = call + "\n" + call;
  for (const size_t piece : {size_t{1}, size_t{7}, text.size()}) {
    const Json whole = ParseJsonBody(Formatted(/*stream=*/false, text, piece)).value();
    const Json& message = whole["choices"][0]["message"];
    EXPECT_TRUE(message["content"].is_null()) << message["content"];
    EXPECT_EQ(message["tool_calls"].size(), 2u);
    int contents = 0, calls = 0;
    for (const absl::string_view event :
         absl::StrSplit(Formatted(/*stream=*/true, text, piece), "\n\n", absl::SkipEmpty())) {
      const Json read = ParseJsonBody(absl::StripPrefix(event, "data: ")).value();
      const Json& delta = read["choices"][0]["delta"];
      calls += delta.contains("tool_calls") ? 1 : 0;
      if (!delta.contains("content")) continue;
      ++contents;
      EXPECT_EQ(delta["role"], "assistant") << "the first event alone has content";
      EXPECT_EQ(delta["content"], "");
    }
    EXPECT_EQ(contents, 1);
    EXPECT_EQ(calls, 2);
  }
}

}  // namespace
}  // namespace tandem::router
