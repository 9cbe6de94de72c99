// Goal: a conversation goes on with every call that the router gave, also one that the answer's
// length cut off: arguments that are not the text of an object count as none. Members of another
// type are refused.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "router/front_end/http/chat_format.h"
#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/ollama_request.h"
#include "router/front_end/http/response_request.h"
#include "router/front_end/model_assets.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

// A template whose prompt is the arguments of the calls.
const ModelAssets& Assets() {
  static const auto* const assets = [] {
    auto made = ModelAssets::ForHashEngine().value();
    EXPECT_OK(
        made->UseChatTemplate("{% for m in messages %}{% for c in m.tool_calls or [] %}"
                              "[{{ c.function.arguments | tojson }}]{% endfor %}{% endfor "
                              "%}"));
    return made.release();
  }();
  return *assets;
}

std::string PromptOf(const absl::StatusOr<ApiRequest>& api) {
  if (!api.ok()) return api.status().ToString();
  const auto& ids = api->requests[0].tokens().ids();
  return Assets().tokenizer->Decode(std::vector<TokenId>(ids.begin(), ids.end()), false);
}

absl::StatusOr<ApiRequest> ChatWith(const Json& message) {
  const Json body = {{"messages",
                      {{{"role", "user"}, {"content", "u"}},
                       message,
                       {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "r"}}}}};
  return ReadChat(body, Assets(), absl::UnixEpoch(), true);
}

absl::StatusOr<ApiRequest> ChatWithArguments(const Json& arguments) {
  return ChatWith({{"role", "assistant"},
                   {"tool_calls",
                    {{{"id", "c"},
                      {"type", "function"},
                      {"function", {{"name", "f"}, {"arguments", arguments}}}}}}});
}

absl::StatusOr<ApiRequest> OllamaChatWithArguments(const Json& arguments) {
  const Json body = {
      {"model", "hash"},
      {"messages",
       {{{"role", "user"}, {"content", "u"}},
        {{"role", "assistant"},
         {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", arguments}}}}}}}}}};
  return ReadOllamaChat(body, Assets(), {absl::UnixEpoch(), false});
}

absl::StatusOr<ApiRequest> ResponseWithArguments(const Json& arguments) {
  const Json body = {
      {"input",
       {{{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", arguments}}}}};
  return ReadResponse(body, Assets(), absl::UnixEpoch(), {});
}

TEST(CutCalls, ArgumentsThatAreNoObjectCountAsNone) {
  const std::string deep = absl::StrCat(R"({"a":)", std::string(100000, '['));
  for (const std::string& text :
       {std::string("{\n  \"city\": "), std::string("null"), std::string("[1]"),
        std::string("\"Beijing\""), std::string("   "), std::string(), std::string(R"({"a":NaN})"),
        std::string("{\"a\":\"\xff\"}"), deep, deep + std::string(100000, ']') + "}"}) {
    EXPECT_EQ(PromptOf(ChatWithArguments(text)), "[{}]") << text.substr(0, 20);
    EXPECT_EQ(PromptOf(OllamaChatWithArguments(text)), "[{}]") << text.substr(0, 20);
    EXPECT_EQ(PromptOf(ResponseWithArguments(text)), "[{}]") << text.substr(0, 20);
  }
  // A name may be given twice, as by the model that wrote them: the last one counts.
  for (const char* whole : {R"({"a": 1})", R"({"a": 0, "a": 1})"}) {
    EXPECT_EQ(PromptOf(ChatWithArguments(whole)), R"([{"a": 1}])");
    EXPECT_EQ(PromptOf(OllamaChatWithArguments(whole)), R"([{"a": 1}])");
    EXPECT_EQ(PromptOf(ResponseWithArguments(whole)), R"([{"a": 1}])");
  }
}

TEST(CutCalls, OtherTypesAreRefused) {
  for (const Json& arguments : {Json(5), Json::array({1}), Json()}) {
    const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("arguments: "));
    EXPECT_THAT(ChatWithArguments(arguments), refused) << arguments;
    EXPECT_THAT(OllamaChatWithArguments(arguments), refused) << arguments;
    EXPECT_THAT(ResponseWithArguments(arguments), refused) << arguments;
  }
}

// A named tool's call that max_tokens cut off goes back as it came.
TEST(CutCalls, AChatTakesItsOwnAnswer) {
  ApiRequest api = ReadChat(ParseJsonBody(R"({"messages":[{"role":"user","content":"u"}],
      "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],
      "tool_choice":{"type":"function","function":{"name":"f"}}})")
                                .value(),
                            Assets(), absl::UnixEpoch(), true)
                       .value();
  api.prompts = api.requests.size();
  api.requests.clear();
  const auto format = NewChatFormat(std::move(api), {"id", 0, "hash", "f"}, *Assets().tokenizer);
  v1::GenerateResponse part;
  part.mutable_started();
  format->Add(0, part, nullptr);
  format->AddText(0, 0, "{\n  \"city\": ", nullptr);
  part.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
  format->Add(0, part, nullptr);
  const Json answer = ParseJsonBody(format->ToJson()).value();
  const Json& message = answer["choices"][0]["message"];
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], "{\n  \"city\": ");
  EXPECT_EQ(PromptOf(ChatWith(message)), "[{}]");
}

}  // namespace
}  // namespace tandem::router
