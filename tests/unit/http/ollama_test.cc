// Goal: what Ollama's API asks for lands in the request of ours that a chat with the same meaning
// makes; what is refused is named as Ollama names it; a stream's lines say what the whole object
// says, however the text comes.
#include <gmock/gmock.h>

#include "absl/strings/str_split.h"
#include "router/front_end/http/api_dialect.h"
#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/ollama_format.h"
#include "router/front_end/http/ollama_request.h"
#include "router/front_end/http/openai_error.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const ModelAssets& OllamaAssets() {
  static const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  return *assets;
}

Json OllamaBody(const std::string& members) {
  return ParseJsonBody(absl::StrCat("{", members, "}")).value();
}

absl::StatusOr<ApiRequest> OllamaChatOf(const std::string& members, bool strict = false) {
  const bool whole = members.find("\"messages\"") != std::string::npos;
  return ReadOllamaChat(
      OllamaBody(
          absl::StrCat(whole ? "" : R"("messages":[{"role":"user","content":"u"}],)", members)),
      OllamaAssets(), {absl::UnixEpoch(), strict});
}

absl::StatusOr<ApiRequest> OllamaGenerateOf(const std::string& members, bool strict = false) {
  return ReadOllamaGenerate(OllamaBody(members), OllamaAssets(), {absl::UnixEpoch(), strict});
}

// The request of a chat with these members, for comparison.
v1::GenerateRequest SameChat(const std::string& members) {
  return ReadChat(OllamaBody(members), OllamaAssets(), absl::UnixEpoch(), true).value().requests[0];
}

TEST(Ollama, OptionsAreAChatsParameters) {
  ASSERT_OK_AND_ASSIGN(const ApiRequest api, OllamaChatOf(R"("model":"hash","stream":false,
      "options":{"temperature":0.5,"top_k":7,"top_p":0.9,"min_p":0.1,"seed":4,"num_predict":9,
      "stop":["a"],"repeat_penalty":1.2,"presence_penalty":0.3,"frequency_penalty":-0.4,
      "repeat_last_n":-1,"num_ctx":4096,"num_thread":8,"typical_p":1.0,"mirostat":0},
      "keep_alive":"5m","think":false)",
                                                          /*strict=*/true));
  EXPECT_EQ(api.kind, ApiKind::kOllamaChat);
  EXPECT_FALSE(api.stream);
  EXPECT_EQ(api.requests[0].SerializeAsString(),
            SameChat(R"("messages":[{"role":"user","content":"u"}],"model":"hash","temperature":0.5,
          "top_k":7,"top_p":0.9,"min_p":0.1,"seed":4,"max_tokens":9,"stop":["a"],
          "repeat_penalty":1.2,"presence_penalty":0.3,"frequency_penalty":-0.4)")
                .SerializeAsString());
}

TEST(Ollama, StreamsUnlessToldNotTo) {
  EXPECT_TRUE(OllamaChatOf(R"("model":"hash")").value().stream);
  EXPECT_TRUE(OllamaGenerateOf(R"("prompt":"u")").value().stream);
}

TEST(Ollama, NoLimitIsWhatTheContextHolds) {
  for (const char* limit : {"-1", "-2", "null"}) {
    for (const char* raw : {"true", "false"}) {
      const std::string members =
          absl::StrCat(R"("prompt":"u","raw":)", raw, R"(,"options":{"num_predict":)", limit, "}");
      EXPECT_FALSE(OllamaGenerateOf(members).value().requests[0].stop().has_max_tokens());
    }
  }
}

TEST(Ollama, APromptIsAConversationUnlessItIsRaw) {
  ASSERT_OK_AND_ASSIGN(const ApiRequest api, OllamaGenerateOf(R"("prompt":"u","system":"s")"));
  EXPECT_EQ(api.kind, ApiKind::kOllamaGenerate);
  EXPECT_EQ(
      api.requests[0].SerializeAsString(),
      SameChat(R"("messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}])")
          .SerializeAsString());
  ASSERT_OK_AND_ASSIGN(const ApiRequest raw, OllamaGenerateOf(R"("prompt":"u","raw":true)"));
  EXPECT_EQ(raw.requests[0].text(), "u");
}

TEST(Ollama, FormatsAndToolsAreAChats) {
  constexpr char kSchema[] = R"({"type":"object"})";
  const ApiRequest schema = OllamaChatOf(absl::StrCat("\"format\":", kSchema)).value();
  EXPECT_EQ(schema.requests[0].guided().json_schema(), kSchema);
  EXPECT_TRUE(OllamaChatOf(R"("format":"json")").value().requests[0].guided().json_object());
  EXPECT_FALSE(OllamaChatOf(R"("format":"")").value().requests[0].has_guided());
  ASSERT_OK_AND_ASSIGN(const ApiRequest api, OllamaChatOf(R"("messages":[
      {"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"x":1}}}]},
      {"role":"tool","tool_name":"f","content":"2"}],
      "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])"));
  EXPECT_EQ(api.tool_mode, ToolMode::kAuto);
}

TEST(Ollama, NamesMayHaveTheTagLatest) {
  ASSERT_OK_AND_ASSIGN(const ApiRequest api, OllamaChatOf(R"("model":"hash:latest")"));
  EXPECT_EQ(api.requests[0].model(), OllamaModelName("hash", OllamaAssets()).value());
  EXPECT_EQ(api.model, "hash:latest");
  EXPECT_THAT(OllamaChatOf(R"("model":"hash:7b")"),
              StatusIs(absl::StatusCode::kNotFound, StartsWith("model: \"hash:7b\"")));
  EXPECT_THAT(OllamaModelName(std::string(129, 'x'), OllamaAssets()),
              StatusIs(absl::StatusCode::kNotFound, StartsWith("model: a text of 129 bytes")));
}

TEST(Ollama, WhatIsRefusedIsNamed) {
  constexpr auto kWrong = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnserved = absl::StatusCode::kUnimplemented;
  const struct {
    const char* members;
    absl::StatusCode code;
    const char* name;
  } cases[] = {
      {R"("options":{"temperature":"hot"})", kWrong, "options.temperature: "},
      {R"("options":{"top_k":1.5})", kWrong, "options.top_k: "},
      {R"("options":{"num_predict":0})", kWrong, "options.num_predict: 0, expected"},
      {R"("options":{"num_predict":-3})", kWrong, "options.num_predict: "},
      {R"("options":{"num_ctx":0})", kWrong, "options.num_ctx: "},
      {R"("options":{"stop":[1]})", kWrong, "options.stop"},
      {R"("options":{"mirostat":1})", kUnserved, "options.mirostat: "},
      {R"("options":{"typical_p":0.7})", kUnserved, "options.typical_p: "},
      {R"("options":{"repeat_penalty":1.1,"repeat_last_n":64})", kUnserved,
       "options.repeat_last_n: "},
      {R"("options":[])", kWrong, "options: "},
      {R"("format":"yaml")", kWrong, "format: "},
      {R"("think":true)", kUnserved, "think: "},
      {R"("stream":1)", kWrong, "stream: "},
      {R"("messages":[{"role":"user","content":"u","images":["aGk="]}])", kUnserved,
       "messages[0].images: "},
      {R"("messages":[{"role":"friend","content":"u"}])", kWrong, "messages[0].role: "},
      {R"("messages":"u")", kWrong, "messages: "},
  };
  for (const auto& one : cases) {
    EXPECT_THAT(OllamaChatOf(one.members), StatusIs(one.code, StartsWith(one.name))) << one.members;
  }
  for (const char* name : {"suffix", "template", "images", "context"}) {
    const bool list = name[0] == 'i' || name[0] == 'c';
    EXPECT_THAT(
        OllamaGenerateOf(absl::StrCat("\"prompt\":\"u\",\"", name, "\":", list ? "[1]" : "\"x\"")),
        StatusIs(kUnserved, StartsWith(absl::StrCat(name, ": "))));
    EXPECT_OK(
        OllamaGenerateOf(absl::StrCat("\"prompt\":\"u\",\"", name, "\":", list ? "[]" : "\"\"")));
  }
  EXPECT_THAT(OllamaGenerateOf(R"("prompt":"u","raw":true,"system":"s")"),
              StatusIs(kWrong, StartsWith("system: ")));
  EXPECT_THAT(OllamaGenerateOf(R"("prompt":"u","options":{"heat":1})", /*strict=*/true),
              StatusIs(kWrong, StartsWith("options.heat: ")));
  const std::string long_prompt(OllamaAssets().prompt_bytes_max + 1, 'x');
  EXPECT_THAT(OllamaGenerateOf(absl::StrCat("\"prompt\":\"", long_prompt, "\"")),
              StatusIs(kWrong, StartsWith("prompt: ")));
}

TEST(Ollama, PenaltiesThatAreOffHaveNoWindow) {
  EXPECT_OK(OllamaChatOf(R"("options":{"repeat_last_n":64})"));
  EXPECT_OK(OllamaChatOf(R"("options":{"repeat_last_n":64,"repeat_penalty":1.0})"));
}

TEST(Ollama, ABodyWithoutAPromptLoads) {
  EXPECT_EQ(OllamaLoadReason(OllamaBody(R"("model":"m")")), "load");
  EXPECT_EQ(OllamaLoadReason(OllamaBody(R"("messages":[],"keep_alive":0)")), "unload");
  EXPECT_EQ(OllamaLoadReason(OllamaBody(R"("prompt":"","keep_alive":"0")")), "unload");
  EXPECT_EQ(OllamaLoadReason(OllamaBody(R"("prompt":"u","keep_alive":0)")), std::nullopt);
  EXPECT_OK(CheckOllamaLoad(OllamaBody(R"("messages":[],"stream":null,"options":{"x":1})"),
                            ApiKind::kOllamaChat));
  // Wrong types are refused as beside a prompt.
  for (const char* wrong : {R"("stream":"no")", R"("options":7)", R"("messages":{})",
                            R"("tools":[1])", R"("strict":{})"}) {
    EXPECT_THAT(CheckOllamaLoad(OllamaBody(wrong), ApiKind::kOllamaChat),
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr(": ")));
  }
  for (const char* wrong : {R"("prompt":[])", R"("system":1)", R"("raw":"yes")"}) {
    EXPECT_THAT(CheckOllamaLoad(OllamaBody(wrong), ApiKind::kOllamaGenerate),
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr(": ")));
  }
}

// ---- answers

// Feeds `text` in pieces of `size` bytes; returns the stream's lines.
std::vector<Json> OllamaLines(const std::string& members, const std::string& text, size_t size,
                              std::string* whole = nullptr) {
  ApiRequest api = OllamaChatOf(members).value();
  api.requests.clear();
  api.prompts = 1;
  const auto format =
      NewOllamaFormat(std::move(api), {"id", 0, "hash", "f"}, *OllamaAssets().tokenizer);
  std::string events;
  std::string* const to = whole == nullptr ? &events : nullptr;
  v1::GenerateResponse part;
  part.mutable_started()->set_prompt_tokens(7);
  format->Add(0, part, to);
  for (size_t at = 0; at < text.size(); at += size) {
    format->AddText(0, 0, absl::string_view(text).substr(at, size), to);
  }
  v1::Finished& finished = *part.mutable_finished();
  finished.set_reason(v1::FINISH_REASON_LENGTH);
  finished.mutable_usage()->set_output_tokens(5);
  finished.mutable_timing()->set_queue_ms(1);
  finished.mutable_timing()->set_first_token_ms(3);
  finished.mutable_timing()->set_total_ms(10);
  format->Add(0, part, to);
  if (whole != nullptr) {
    *whole = format->ToJson();
    return {};
  }
  format->EndEvents(events);
  std::vector<Json> lines;
  for (const absl::string_view line : absl::StrSplit(events, '\n', absl::SkipEmpty())) {
    lines.push_back(ParseJsonBody(line).value());
  }
  return lines;
}

constexpr char kOllamaTools[] =
    R"("model":"hash:latest","tools":[{"type":"function","function":{"name":"f"}}])";

TEST(OllamaFormat, LinesJoinToTheWholeObject) {
  const std::string text = R"(so <tool_call>{"name":"f","arguments":{"x":1}}</tool_call> on)";
  for (const size_t size : {size_t{1}, size_t{7}, text.size()}) {
    const std::vector<Json> lines = OllamaLines(kOllamaTools, text, size);
    std::string whole_text, content;
    OllamaLines(kOllamaTools, text, size, &whole_text);
    const Json whole = ParseJsonBody(whole_text).value();
    Json calls = Json::array();
    for (const Json& line : lines) {
      EXPECT_EQ(line["model"], "hash:latest");
      EXPECT_EQ(line["done"], &line == &lines.back());
      EXPECT_EQ(line["message"]["role"], "assistant");
      content += line["message"]["content"].get<std::string>();
      if (!line["message"].contains("tool_calls")) continue;
      for (const Json& call : line["message"]["tool_calls"]) calls.push_back(call);
    }
    EXPECT_EQ(content, "so  on");
    EXPECT_EQ(whole["message"]["content"], content);
    EXPECT_EQ(calls.dump(), R"([{"function":{"name":"f","arguments":{"x":1}}}])");
    EXPECT_EQ(whole["message"]["tool_calls"], calls);
    for (const Json& end : {whole, lines.back()}) {
      EXPECT_EQ(end["done_reason"], "length");
      EXPECT_EQ(end["prompt_eval_count"], 7);
      EXPECT_EQ(end["eval_count"], 5);
      EXPECT_EQ(end["total_duration"], 10'000'000);
      EXPECT_EQ(end["load_duration"], 1'000'000);
      EXPECT_EQ(end["prompt_eval_duration"], 2'000'000);
      EXPECT_EQ(end["eval_duration"], 7'000'000);
    }
  }
}

TEST(OllamaFormat, BlanksBetweenCallsAreNotContent) {
  const std::string call = R"(<tool_call>{"name":"f"}</tool_call>)";
  const std::string text = call + "\n" + call;
  for (const size_t size : {size_t{1}, text.size()}) {
    std::string whole;
    OllamaLines(kOllamaTools, text, size, &whole);
    EXPECT_EQ(ParseJsonBody(whole).value()["message"]["content"], "");
    for (const Json& line : OllamaLines(kOllamaTools, text, size)) {
      EXPECT_EQ(line["message"]["content"], "");
    }
  }
}

TEST(OllamaFormat, ErrorsAreOneMember) {
  HttpReply reply = ErrorReply(absl::InvalidArgumentError("options.top_k: 1.5, expected \"x\""));
  ErrorForm{DialectOf("/api/chat"), "id"}.Apply(reply);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, R"({"error":"options.top_k: 1.5, expected \"x\""})");
  HttpReply fine = {.body = "{}"};
  ErrorForm{Dialect::kOllama, "id"}.Apply(fine);
  EXPECT_EQ(fine.body, "{}");
}

}  // namespace
}  // namespace tandem::router
