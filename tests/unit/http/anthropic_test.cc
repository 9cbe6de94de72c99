// Goal: what Anthropic's API asks for lands in the request of ours that a chat with the same
// meaning makes; what is refused is named as Anthropic names it; events are the API's, and the
// blocks they make are those of the whole object, however the text comes.
#include <gmock/gmock.h>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/runtime/random.h"
#include "router/front_end/http/anthropic_format.h"
#include "router/front_end/http/anthropic_request.h"
#include "router/front_end/http/api_dialect.h"
#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/openai_error.h"
#include "router/front_end/http/request_headers.h"
#include "router/front_end/request_validation.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const ModelAssets& MessageAssets() {
  static const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  return *assets;
}

// `members` beside the message "u" and a limit, unless they have their own.
absl::StatusOr<ApiRequest> MessageOf(const std::string& members, AnthropicReading reading = {}) {
  const auto has = [&](const char* name) { return members.find(name) != std::string::npos; };
  const std::string body = absl::StrCat(
      "{", has("\"messages\"") ? "" : R"("messages":[{"role":"user","content":"u"}],)",
      has("\"max_tokens\"") || reading.counts_only ? "" : R"("max_tokens":9,)", members);
  const std::string whole(absl::StripSuffix(body, ","));
  ASSIGN_OR_RETURN(const Json json, ParseJsonBody(whole + "}"));
  return ReadAnthropic(json, MessageAssets(), reading);
}

std::string SameAs(const std::string& chat) {
  const Json json = ParseJsonBody(absl::StrCat("{\"max_tokens\":9,", chat, "}")).value();
  return ReadChat(json, MessageAssets(), absl::UnixEpoch(), true)
      .value()
      .requests[0]
      .SerializeAsString();
}

std::string BytesOf(const absl::StatusOr<ApiRequest>& api) {
  return api.ok() ? api->requests[0].SerializeAsString() : api.status().ToString();
}

constexpr char kMessageTools[] =
    R"("tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}])";
constexpr char kChatTools[] = R"("tools":[{"type":"function","function":)"
                              R"({"name":"f","description":"d","parameters":{"type":"object"}}}])";

TEST(Anthropic, ParametersAreAChats) {
  const absl::StatusOr<ApiRequest> api =
      MessageOf(R"("model":"hash","max_tokens":9,"stop_sequences":["a"],"temperature":0.5,
      "top_k":7,"top_p":0.9,"seed":4,"priority":4,"stream":true,"metadata":{"user_id":"u"},
      "thinking":{"type":"disabled"},"service_tier":"standard_only")",
                {.strict = true});
  EXPECT_EQ(BytesOf(api), SameAs(R"("messages":[{"role":"user","content":"u"}],"model":"hash",
      "stop":["a"],"temperature":0.5,"top_k":7,"top_p":0.9,"seed":4,"priority":4,"service_tier":"default")"));
  EXPECT_TRUE(api->tells_tier);
  EXPECT_EQ(api->kind, ApiKind::kMessage);
  EXPECT_TRUE(api->stream);
}

TEST(Anthropic, BlocksAreMessages) {
  EXPECT_EQ(BytesOf(MessageOf(absl::StrCat(R"("system":[{"type":"text","text":"s","cache_control":
          {"type":"ephemeral"}},{"type":"text","text":"t"}],"messages":[
          {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"assistant","content":[{"type":"text","text":"c"},
           {"type":"tool_use","id":"1","name":"f","input":{"x":1}}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"2"},
           {"type":"text","text":"e"}]}],)",
                                           kMessageTools))),
            SameAs(absl::StrCat(R"("messages":[{"role":"system","content":"s\nt"},
          {"role":"user","content":"a\nb"},
          {"role":"assistant","content":"c","tool_calls":[{"id":"1","type":"function",
           "function":{"name":"f","arguments":"{\"x\":1}"}}]},
          {"role":"tool","tool_call_id":"1","name":"f","content":"2"},
          {"role":"user","content":"e"}],)",
                                kChatTools)));
  EXPECT_EQ(BytesOf(MessageOf(R"("system":"s","messages":[{"role":"user","content":"u"},
                {"role":"assistant","content":[{"type":"text","text":"Once"}]}])")),
            SameAs(R"("messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},
                {"role":"assistant","content":"Once"}],"continue_final_message":true)"));
}

TEST(Anthropic, ConsecutiveMessagesOfOneRoleAreOne) {
  EXPECT_EQ(BytesOf(MessageOf(absl::StrCat(R"("messages":[
          {"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]},
          {"role":"assistant","content":[]},{"role":"assistant","content":"c"},
          {"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]},
          {"role":"assistant","content":[{"type":"tool_use","id":"2","name":"f","input":{}}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"x"}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"2","content":"y"},
           {"type":"text","text":"d"}]},
          {"role":"user","content":"e"},
          {"role":"user","content":[{"type":"text","text":"g"},
           {"type":"tool_result","tool_use_id":"2","content":"z"}]}],)",
                                           kMessageTools))),
            SameAs(absl::StrCat(R"("messages":[{"role":"user","content":"a\nb"},
          {"role":"assistant","content":"c","tool_calls":[
           {"id":"1","type":"function","function":{"name":"f","arguments":"{}"}},
           {"id":"2","type":"function","function":{"name":"f","arguments":"{}"}}]},
          {"role":"tool","tool_call_id":"1","name":"f","content":"x"},
          {"role":"tool","tool_call_id":"2","name":"f","content":"y"},
          {"role":"user","content":"d\ne\ng"},
          {"role":"tool","tool_call_id":"2","name":"f","content":"z"}],)",
                                kChatTools)));
  EXPECT_EQ(BytesOf(MessageOf(R"("messages":[{"role":"user","content":"u"},
                {"role":"assistant","content":"One"},{"role":"assistant","content":"two"}])")),
            SameAs(R"("messages":[{"role":"user","content":"u"},
                {"role":"assistant","content":"One\ntwo"}],"continue_final_message":true)"));
}

TEST(Anthropic, ToolChoicesAreAChats) {
  constexpr char kOne[] = R"("messages":[{"role":"user","content":"u"}],)";
  const struct {
    const char *here, *chat;
    ToolMode mode;
  } cases[] = {
      {R"({"type":"auto"})", R"("auto")", ToolMode::kAuto},
      {R"({"type":"any","disable_parallel_tool_use":true})",
       R"("required","parallel_tool_calls":false)", ToolMode::kRequired},
      {R"({"type":"tool","name":"f"})", R"({"type":"function","function":{"name":"f"}})",
       ToolMode::kNamed},
      {R"({"type":"none"})", R"("none")", ToolMode::kNone},
  };
  for (const auto& one : cases) {
    const auto api = MessageOf(absl::StrCat(kMessageTools, ",\"tool_choice\":", one.here));
    EXPECT_EQ(BytesOf(api), SameAs(absl::StrCat(kOne, kChatTools, ",\"tool_choice\":", one.chat)));
    EXPECT_EQ(api->tool_mode, one.mode) << one.here;
  }
  const auto form = MessageOf(
      R"("output_config":{"effort":"low","format":{"type":"json_schema","schema":{"enum":[1]}}})");
  EXPECT_EQ(form->requests[0].guided().json_schema(), R"({"enum":[1]})");
}

TEST(Anthropic, CountingNeedsNoLimit) { EXPECT_OK(MessageOf("", {.counts_only = true})); }

TEST(Anthropic, WhatIsRefusedIsNamed) {
  constexpr auto kWrong = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnserved = absl::StatusCode::kUnimplemented;
  const auto user = [](const std::string& block) {
    return absl::StrCat(R"("messages":[{"role":"user","content":[)", block, "]}]");
  };
  const struct {
    std::string members;
    absl::StatusCode code;
    const char* name;
  } cases[] = {
      {R"("max_tokens":null)", kWrong, "max_tokens: "},
      {R"("max_tokens":0)", kWrong, "max_tokens: 0, expected"},
      {R"("stop_sequences":[1])", kWrong, "stop_sequences"},
      {R"("top_k":1.5)", kWrong, "top_k: "},
      {R"("messages":[])", kWrong, "messages: "},
      {R"("messages":["u"])", kWrong, "messages[0]: "},
      {R"("messages":[{"role":"system","content":"u"}])", kWrong, "messages[0].role: "},
      {R"("messages":[{"role":"user"}])", kWrong, "messages[0].content: missing"},
      {R"("messages":[{"role":"user","content":[]}])", kWrong, "messages[0].content: "},
      {user(R"({"type":"image","source":{}})"), kUnserved, "messages[0].content[0].type: \"image"},
      {user(R"({"type":"text"})"), kWrong, "messages[0].content[0].text: "},
      {user(R"({"text":"u"})"), kWrong, "messages[0].content[0].type: missing"},
      {user(R"({"type":"tool_result","tool_use_id":"1"})"), kWrong,
       "messages[0].content[0].tool_use_id: "},
      {R"("messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"t"}]}])",
       kUnserved, "messages[0].content[0].type: \"thinking"},
      {R"("messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f"}]}])",
       kWrong, "messages[0].content[0].input: "},
      {R"("messages":[{"role":"user","content":"u"},{"role":"assistant","content":[
          {"type":"tool_use","id":"1","name":"f","input":{}}]}])",
       kWrong, "messages: "},
      {R"("system":[{"type":"image"}])", kUnserved, "system[0].type: "},
      {R"("system":7)", kWrong, "system: "},
      {R"("tools":[{"type":"bash_20250124","name":"bash"}])", kUnserved, "tools[0].type: "},
      {R"("tools":[{"name":"f"}])", kWrong, "tools[0].input_schema: missing"},
      {R"("tool_choice":{"type":"any"})", kWrong, "tool_choice: "},
      {R"("tool_choice":{"type":"some"})", kWrong, "tool_choice.type: "},
      {absl::StrCat(kMessageTools, R"(,"tool_choice":{"type":"tool","name":"g"})"), kWrong,
       "tool_choice.name: "},
      {R"("thinking":{"type":"enabled","budget_tokens":1024})", kUnserved, "thinking.type: "},
      {R"("output_config":{"format":{"type":"text"}})", kWrong, "output_config.format.type: "},
      {R"("mcp_servers":[{"url":"u"}])", kUnserved, "mcp_servers: "},
  };
  for (const auto& one : cases) {
    EXPECT_THAT(MessageOf(one.members), StatusIs(one.code, StartsWith(one.name))) << one.members;
  }
  EXPECT_THAT(MessageOf(R"("heat":1)", {.strict = true}), StatusIs(kWrong, StartsWith("heat: ")));
  const std::string long_prompt(MessageAssets().prompt_bytes_max + 1, 'x');
  EXPECT_THAT(
      MessageOf(absl::StrCat(R"("messages":[{"role":"user","content":")", long_prompt, "\"}]")),
      StatusIs(kWrong, StartsWith("messages: ")));
}

// ---- answers

struct Answered {
  std::vector<Json> events;
  Json whole;
};

// Feeds `text` in pieces of `size` bytes.
Answered Answer(const std::string& members, absl::string_view text, size_t size,
                v1::FinishReason reason = v1::FINISH_REASON_STOP, const std::string& stop = "") {
  Answered answered;
  for (const bool stream : {true, false}) {
    ApiRequest api = MessageOf(members).value();
    api.requests.clear();
    api.prompts = 1;
    const auto format =
        NewAnthropicFormat(std::move(api), {"msg_1", 0, "hash", "f"}, *MessageAssets().tokenizer);
    std::string events;
    std::string* const to = stream ? &events : nullptr;
    v1::GenerateResponse part;
    part.mutable_started()->set_prompt_tokens(7);
    format->Add(0, part, to);
    for (size_t at = 0; at < text.size(); at += size) {
      format->AddText(0, 0, text.substr(at, size), to);
    }
    v1::Finished& finished = *part.mutable_finished();
    finished.set_reason(reason);
    finished.set_stop_string(stop);
    finished.mutable_usage()->set_output_tokens(5);
    finished.mutable_usage()->set_cached_tokens(4);
    format->Add(0, part, to);
    if (!stream) {
      answered.whole = ParseJsonBody(format->ToJson()).value();
      continue;
    }
    format->EndEvents(events);
    for (const absl::string_view event : absl::StrSplit(events, "\n\n", absl::SkipEmpty())) {
      const std::pair<absl::string_view, absl::string_view> lines =
          absl::StrSplit(event, absl::MaxSplits('\n', 1));
      answered.events.push_back(ParseJsonBody(absl::StripPrefix(lines.second, "data: ")).value());
      EXPECT_EQ(lines.first, "event: " + answered.events.back()["type"].get<std::string>());
    }
  }
  return answered;
}

// The message that the events make, as clients put it together.
Json Joined(const std::vector<Json>& events) {
  Json message;
  std::string input;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (type == "message_start") message = event["message"];
    if (type == "content_block_start") {
      EXPECT_EQ(event["index"], message["content"].size());
      message["content"].push_back(event["content_block"]);
      input.clear();
    }
    if (type == "content_block_delta") {
      Json& block = message["content"].at(event["index"].get<size_t>());
      const Json& delta = event["delta"];
      if (delta["type"] == "text_delta") {
        block["text"] = block["text"].get<std::string>() + delta["text"].get<std::string>();
      } else {
        input += delta["partial_json"].get<std::string>();
      }
    }
    if (type == "content_block_stop" && message["content"].back()["type"] == "tool_use") {
      message["content"].back()["input"] = ParseJsonBody(input).value();
    }
    if (type == "message_delta") {
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    }
  }
  EXPECT_EQ(events.back()["type"], "message_stop");
  return message;
}

constexpr char kOneCall[] = R"(<tool_call>{"name":"f","arguments":{"x":1}}</tool_call>)";

TEST(AnthropicFormat, EventsMakeTheWholeMessage) {
  const std::string text = absl::StrCat("so ", kOneCall, "\n", kOneCall, " and > on");
  for (const size_t size : {size_t{1}, size_t{9}, text.size()}) {
    const Answered answered = Answer(kMessageTools, text, size);
    EXPECT_EQ(Joined(answered.events), answered.whole);
    EXPECT_EQ(answered.whole["content"].dump(),
              R"([{"type":"text","text":"so "},)"
              R"({"type":"tool_use","id":"toolu_1_0","name":"f","input":{"x":1}},)"
              R"({"type":"tool_use","id":"toolu_1_1","name":"f","input":{"x":1}},)"
              R"({"type":"text","text":" and > on"}])")
        << "pieces of " << size;
    EXPECT_EQ(answered.whole["stop_reason"], "tool_use");
    EXPECT_EQ(answered.whole["usage"].dump(),
              R"({"input_tokens":3,"cache_creation_input_tokens":0,)"
              R"("cache_read_input_tokens":4,"output_tokens":5})");
    EXPECT_EQ(answered.events[0]["message"]["usage"]["input_tokens"], 7);
  }
}

TEST(AnthropicFormat, SaysWhyItStopped) {
  const auto reasons = [](const Answered& answered) {
    EXPECT_EQ(Joined(answered.events), answered.whole);
    return JsonText(Json::array({answered.whole["stop_reason"], answered.whole["stop_sequence"]}));
  };
  EXPECT_EQ(reasons(Answer("", "a", 1)), R"(["end_turn",null])");
  EXPECT_EQ(reasons(Answer("", "a", 1, v1::FINISH_REASON_STOP, "!")), R"(["stop_sequence","!"])");
  EXPECT_EQ(reasons(Answer("", "a", 1, v1::FINISH_REASON_LENGTH)), R"(["max_tokens",null])");
  EXPECT_EQ(reasons(Answer("", "a", 1, v1::FINISH_REASON_ABORTED)), "[null,null]");
  const Answered empty = Answer("", "", 1);
  EXPECT_EQ(reasons(empty), R"(["end_turn",null])");
  EXPECT_EQ(empty.whole["content"], Json::array());
}

// A call that a stop string cut off is none that a client may run.
TEST(AnthropicFormat, ACutCallIsNoToolUse) {
  const std::string members = absl::StrCat(kMessageTools, R"(,"tool_choice":{"type":"any"})");
  const std::string call = R"([{"name":"f","parameters":{"x":1}})";
  const Answered whole = Answer(members, call + "]", 5);
  EXPECT_EQ(whole.whole["stop_reason"], "tool_use");
  const std::string cut = call + R"(,{"name":"f","parameters":{"x":"the )";
  const Answered stopped = Answer(members, cut, 5, v1::FINISH_REASON_STOP, "END");
  EXPECT_EQ(stopped.whole["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped.whole["stop_sequence"], "END");
  EXPECT_EQ(stopped.whole["content"].size(), 2u);
}

TEST(AnthropicFormat, ErrorsHaveAnthropicsForm) {
  HttpReply reply = ErrorReply(absl::NotFoundError("model: \"x\" is not served"));
  ErrorForm{DialectOf("/v1/messages"), "id"}.Apply(reply);
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.body, R"({"type":"error","error":{"type":"not_found_error",)"
                        R"("message":"model: \"x\" is not served"},"request_id":"id"})");
  EXPECT_EQ(DialectOf("/v1/messages/count_tokens"), Dialect::kAnthropic);
  EXPECT_EQ(DialectOf("/v1/messages2"), Dialect::kOpenAi);
  HttpReply busy = ErrorReply(absl::UnavailableError("busy"));
  ErrorForm{Dialect::kAnthropic, ""}.Apply(busy);
  EXPECT_EQ(busy.body, R"({"type":"error","error":{"type":"overloaded_error","message":"busy"}})");
}

// Clients look for these words to shorten a conversation or an answer.
TEST(Anthropic, TheContextIsExceededInAnthropicsWords) {
  const ModelIdentity model = {.name = "m", .vocab_size = 300, .context_tokens = 100};
  const std::unique_ptr<Random> random = NewSeededRandom(1);
  const auto refusal = [&](size_t prompt, int32_t max_tokens) {
    v1::GenerateRequest request;
    request.mutable_tokens()->add_ids(1);
    request.mutable_stop()->set_max_tokens(max_tokens);
    return std::string(
        ToAnthropicFieldNames(
            ValidateRequest(request, std::vector<TokenId>(prompt, 1), model, {}, *random).status())
            .message());
  };
  EXPECT_EQ(refusal(100, 1), "prompt is too long: 100 tokens > 99 maximum");
  EXPECT_EQ(refusal(90, 11),
            "input length and `max_tokens` exceed context limit: 90 + 11 > 100, decrease input "
            "length or `max_tokens` and try again");
  EXPECT_EQ(refusal(90, 10), "");
}

TEST(RequestHeaders, AKeyMayHaveAHeaderOfItsOwn) {
  HttpRequest request;
  EXPECT_EQ(Authorization(request), "");
  request.headers = {{"x-api-key", "k"}};
  EXPECT_EQ(Authorization(request), "Bearer k");
  request.headers = {{"x-api-key", "k"}, {"authorization", "Bearer j"}};
  EXPECT_EQ(Authorization(request), "Bearer j");
}

TEST(RequestHeaders, ARefusedKeyIsNamedByItsHeader) {
  const absl::Status unknown = absl::UnauthenticatedError("authorization: unknown API key");
  const auto named = [&](const std::string& path, HttpHeaders headers) {
    HttpRequest request;
    request.path = path;
    request.headers = std::move(headers);
    return std::string(NameKeyHeader(unknown, request).message());
  };
  EXPECT_EQ(named("/v1/messages", {{"x-api-key", "k"}}), "x-api-key: unknown API key");
  EXPECT_EQ(named("/v1/completions", {{"x-api-key", "k"}}), "x-api-key: unknown API key");
  EXPECT_EQ(named("/v1/messages", {{"authorization", "Bearer k"}}), unknown.message());
  EXPECT_EQ(named("/v1/messages", {}), "x-api-key: missing, expected an API key");
  EXPECT_EQ(named("/v1/completions", {}), unknown.message());
}

TEST(RequestHeaders, ThereIsOneHost) {
  HttpRequest request;
  request.chunked_allowed = false;
  EXPECT_OK(CheckOneHost(request)) << "HTTP/1.0 has none";
  request.chunked_allowed = true;
  EXPECT_THAT(CheckOneHost(request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("host: missing")));
  request.headers = {{"host", ""}};
  EXPECT_OK(CheckOneHost(request));
  request.headers = {{"host", "a"}, {"x", "y"}, {"host", "a"}};
  EXPECT_THAT(CheckOneHost(request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("given twice")));
}

}  // namespace
}  // namespace tandem::router
