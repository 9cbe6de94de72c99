// Goal: white space between the calls of a chat's message is not its content, streamed or whole;
// ids of calls are short, differ, and are the same each time; every chunk has the fingerprint.
#include "router/front_end/http/chat_format.h"

#include <gmock/gmock.h>

#include <set>

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
std::string Formatted(bool stream, const std::string& text, size_t piece,
                      const std::string& id = "id") {
  const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  const std::string how = stream ? R"(true,"stream_options":{"include_usage":true}})" : "false}";
  const Json body = ParseJsonBody(kToolChat + how).value();
  ApiRequest api = ReadChat(body, *assets, absl::UnixEpoch(), false).value();
  api.prompts = api.requests.size();
  api.requests.clear();
  const auto format = NewChatFormat(std::move(api), {id, 0, "hash", "f"}, *assets->tokenizer);
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
  if (stream) format->EndEvents(events);
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
    EXPECT_TRUE(message.contains("refusal") && message["refusal"].is_null());
    int contents = 0, calls = 0;
    for (const absl::string_view event :
         absl::StrSplit(Formatted(/*stream=*/true, text, piece), "\n\n", absl::SkipEmpty())) {
      if (event == "data: [DONE]") continue;
      const Json read = ParseJsonBody(absl::StripPrefix(event, "data: ")).value();
      EXPECT_EQ(read["system_fingerprint"], "f") << event;
      if (read["choices"].empty()) continue;
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

TEST(ChatFormat, IdsOfCallsHaveTheLengthThatOpenAIsApiTakes) {
  const std::string call = "<tool_call>\n{\"name\":\"f\"}\n</tool_call>";
  const auto ids_of = [&](const std::string& id) {
    const std::string text = call + call;
    const Json whole = ParseJsonBody(Formatted(/*stream=*/false, text, text.size(), id)).value();
    std::vector<std::string> ids;
    for (const Json& made : whole["choices"][0]["message"]["tool_calls"]) {
      ids.push_back(made["id"].get<std::string>());
    }
    return ids;
  };
  const std::string own = "chatcmpl-0123456789abcdef0123456789abcdef";
  std::set<std::string> all;
  for (const std::string& id : {own, own + "0", std::string(128, 'x'), std::string(24, 'x'),
                                std::string(25, 'x'), std::string("answer/1")}) {
    const std::vector<std::string> ids = ids_of(id);
    EXPECT_EQ(ids, ids_of(id)) << "a continued answer has the same";
    ASSERT_EQ(ids.size(), 2u);
    for (const std::string& made : ids) {
      EXPECT_LE(made.size(), 40u) << made;
      EXPECT_TRUE(all.insert(made).second) << made;
      // Of 128 answers and a million calls.
      EXPECT_LE(made.size() - std::string("0_0").size() + std::string("127_999999").size(), 40u);
    }
  }
  EXPECT_EQ(ids_of("answer/1")[1], "call_answer/1_0_1");
}

}  // namespace
}  // namespace tandem::router
