// Goal: what OpenAI's Responses API asks for lands in the request of ours that a chat with the same
// meaning makes; what is refused names its field; events are those of the API, and the same whether
// text comes in one part or byte by byte.
#include "router/front_end/http/response_request.h"

#include <gmock/gmock.h>

#include "absl/strings/str_split.h"
#include "router/front_end/http/response_format.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const ModelAssets& Assets() {
  static const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  return *assets;
}

// `members` beside the input "u", or with an input of their own.
absl::StatusOr<ApiRequest> Response(const std::string& members, bool strict = false) {
  const bool whole = members.find("\"input\"") != std::string::npos;
  const absl::StatusOr<Json> json =
      ParseJsonBody(absl::StrCat("{", whole ? "" : R"("input":"u",)", members, "}"));
  if (!json.ok()) return json.status();
  return ReadResponse(*json, Assets(), absl::UnixEpoch(), {.strict = strict});
}

std::string PromptOf(const ApiRequest& api) {
  const auto& ids = api.requests[0].tokens().ids();
  return Assets().tokenizer->Decode(std::vector<TokenId>(ids.begin(), ids.end()), false);
}

constexpr char kTool[] =
    R"("tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":true}])";

TEST(Response, AnAssistantsRefusalIsItsText) {
  const auto said = [](const std::string& role, const std::string& part) {
    return Response(absl::StrCat(R"("input":[{"role":")", role, R"(","content":[{"type":)", part,
                                 R"(}]},{"role":"user","content":"u"}])"));
  };
  const std::string refusal = R"("refusal","refusal":"No.")";
  ASSERT_OK_AND_ASSIGN(const ApiRequest refused, said("assistant", refusal));
  ASSERT_OK_AND_ASSIGN(const ApiRequest answered,
                       said("assistant", R"("output_text","text":"No.")"));
  EXPECT_EQ(PromptOf(refused), PromptOf(answered));
  EXPECT_FALSE(said("user", refusal).ok());
}

TEST(Response, SamplingParametersAreAChats) {
  ASSERT_OK_AND_ASSIGN(const ApiRequest api, Response(R"("model":"m","request_id":"resp_1",
      "temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,"repetition_penalty":1.2,"seed":4,
      "presence_penalty":0.3,"frequency_penalty":-0.4,"logit_bias":{"5":-1.5},"stop":["a"],
      "ignore_eos":true,"include_stop_str_in_output":true,"skip_special_tokens":false,
      "max_output_tokens":9,"min_tokens":2,"priority":4,"deadline_s":2.5,"cache_salt":"salt",
      "include":["message.output_text.logprobs"],"top_logprobs":2,"timing":true)"));
  EXPECT_EQ(api.kind, ApiKind::kResponse);
  ASSERT_EQ(api.requests.size(), 1u);
  const v1::GenerateRequest& request = api.requests[0];
  EXPECT_EQ(request.model(), "m");
  EXPECT_EQ(request.request_id(), "resp_1");
  EXPECT_EQ(request.sampling().temperature(), 0.5);
  EXPECT_EQ(request.sampling().top_p(), 0.9);
  EXPECT_EQ(request.sampling().top_k(), 7);
  EXPECT_EQ(request.sampling().min_p(), 0.1);
  EXPECT_EQ(request.sampling().repetition_penalty(), 1.2);
  EXPECT_EQ(request.sampling().presence_penalty(), 0.3);
  EXPECT_EQ(request.sampling().frequency_penalty(), -0.4);
  EXPECT_EQ(request.sampling().seed(), 4u);
  EXPECT_EQ(request.sampling().logit_bias().at(5), -1.5f);
  EXPECT_EQ(request.sampling().logprobs(), 2);
  EXPECT_EQ(request.stop().max_tokens(), 9);
  EXPECT_EQ(request.stop().min_tokens(), 2);
  EXPECT_THAT(request.stop().stop(), ElementsAre("a"));
  EXPECT_TRUE(request.stop().ignore_eos());
  EXPECT_TRUE(request.stop().include_stop_str_in_output());
  EXPECT_TRUE(request.keep_special_tokens());
  EXPECT_EQ(request.priority(), 4);
  EXPECT_EQ(request.deadline_s(), 2.5);
  EXPECT_EQ(request.cache_salt(), "salt");
  EXPECT_TRUE(api.timing);
}

TEST(Response, OtherNamesOfParametersAreReadToo) {
  ASSERT_OK_AND_ASSIGN(const ApiRequest api,
                       Response(R"("repeat_penalty":1.5,"min_new_tokens":2)", /*strict=*/true));
  EXPECT_EQ(api.requests[0].sampling().repetition_penalty(), 1.5);
  EXPECT_EQ(api.requests[0].stop().min_tokens(), 2);
}

TEST(Response, LeavesOutWhatWasNotSaid) {
  ASSERT_OK_AND_ASSIGN(const ApiRequest api,
                       Response(R"("temperature":null,"tools":null,"text":null,"top_logprobs":3)"));
  const v1::GenerateRequest& request = api.requests[0];
  EXPECT_FALSE(request.sampling().has_temperature());
  EXPECT_FALSE(request.sampling().has_logprobs());
  EXPECT_FALSE(request.stop().has_max_tokens());
  EXPECT_FALSE(request.has_guided());
  EXPECT_EQ(api.tool_mode, ToolMode::kNone);
  const Json& settings = api.response->settings;
  EXPECT_EQ(settings["temperature"], 1);
  EXPECT_EQ(settings["tool_choice"], "auto");
  EXPECT_EQ(settings["text"]["format"]["type"], "text");
  EXPECT_EQ(settings["parallel_tool_calls"], true);
  EXPECT_EQ(settings["truncation"], "disabled");
}

TEST(Response, ItemsAreMessages) {
  ASSERT_OK_AND_ASSIGN(const ApiRequest api, Response(R"("instructions":"i","input":[
      {"role":"developer","content":"d"},
      {"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
      {"type":"message","role":"assistant","id":"m","content":[{"type":"output_text","text":"c"}]},
      {"type":"message","role":"user","content":"e"}])"));
  EXPECT_EQ(PromptOf(api),
            "<|im_start|>system\ni<|im_end|>\n<|im_start|>system\nd<|im_end|>\n"
            "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n"
            "<|im_start|>user\ne<|im_end|>\n<|im_start|>assistant\n");
}

TEST(Response, AMessageThatWasCutOffIsContinued) {
  const std::string said = R"("input":[{"role":"user","content":"u"},{"type":"message","id":"m",
      "role":"assistant","content":"It is ","status":")";
  ASSERT_OK_AND_ASSIGN(ApiRequest api, Response(said + R"(incomplete"}])"));
  EXPECT_EQ(PromptOf(api), "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\nIt is ");
  ASSERT_OK_AND_ASSIGN(api, Response(said + R"(completed"}])"));
  EXPECT_THAT(PromptOf(api), HasSubstr("It is <|im_end|>\n<|im_start|>assistant\n"));
}

TEST(Response, ToolsAndFormsAreAChats) {
  ASSERT_OK_AND_ASSIGN(ApiRequest api, Response(kTool));
  EXPECT_EQ(api.tool_mode, ToolMode::kAuto);
  EXPECT_EQ(api.response->settings["tools"][0]["strict"], true);
  ASSERT_OK_AND_ASSIGN(
      api, Response(absl::StrCat(kTool, R"(,"tool_choice":{"type":"function","name":"f"})")));
  EXPECT_EQ(api.tool_mode, ToolMode::kNamed);
  EXPECT_EQ(api.requests[0].guided().json_schema(), R"({"type":"object"})");
  ASSERT_OK_AND_ASSIGN(api, Response(absl::StrCat(kTool, R"(,"tool_choice":"required")")));
  EXPECT_EQ(api.tool_mode, ToolMode::kRequired);
  ASSERT_OK_AND_ASSIGN(api, Response(R"("text":{"format":{"type":"json_object"}})"));
  EXPECT_TRUE(api.requests[0].guided().json_object());
  ASSERT_OK_AND_ASSIGN(api, Response(R"("text":{"format":{"type":"json_schema","name":"n",
      "strict":true,"schema":{"type":"string"}}})"));
  EXPECT_EQ(api.requests[0].guided().json_schema(), R"({"type":"string"})");
}

TEST(Response, GoesOnWithOneThatWasKept) {
  const Json before = ParseJsonBody(R"({"items":[{"role":"user","content":"u"},
      {"type":"function_call","call_id":"c","name":"f","arguments":"{}"}]})")
                          .value()["items"];
  const ResponseReading reading = {.keeps = true,
                                   .find = [&](const std::string& id) -> absl::StatusOr<Json> {
                                     if (id != "resp_1")
                                       return absl::NotFoundError("previous_response_id: not kept");
                                     return before;
                                   }};
  const auto read = [&](const std::string& body) {
    return ReadResponse(ParseJsonBody(body).value(), Assets(), absl::UnixEpoch(), reading);
  };
  const std::string output =
      R"("input":[{"type":"function_call_output","call_id":"c","output":"o"}])";
  ASSERT_OK_AND_ASSIGN(
      const ApiRequest api,
      read(R"({"previous_response_id":"resp_1","instructions":"i",)" + output + "}"));
  EXPECT_THAT(PromptOf(api), StartsWith("<|im_start|>system\ni<|im_end|>\n<|im_start|>user\nu"));
  EXPECT_TRUE(api.response->store);
  EXPECT_EQ(Json::parse(api.response->items).size(), 3u);
  EXPECT_EQ(api.response->settings["previous_response_id"], "resp_1");
  EXPECT_THAT(read(R"({"previous_response_id":"resp_2","input":"u"})"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("previous_response_id")));
  ASSERT_OK_AND_ASSIGN(const ApiRequest unkept, read(R"({"store":false,"input":"u"})"));
  EXPECT_FALSE(unkept.response->store);
  EXPECT_EQ(unkept.response->items, "");
  EXPECT_THAT(Response(R"("previous_response_id":"resp_1")"),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("keeps no responses")));
}

// What max_output_tokens or a stop string cut off is kept as it is, and goes on without arguments.
TEST(Response, GoesOnWithACallThatWasCutOff) {
  const auto item = [](const char* status) {
    return ParseJsonBody(absl::StrCat(R"({"items":[{"type":"function_call","call_id":"c",
        "name":"f","arguments":"{\"x\": [1, ","status":")",
                                      status, "\"}]}"))
        .value()["items"];
  };
  const auto read = [&](const char* status) {
    const ResponseReading reading = {
        .keeps = true,
        .find = [&](const std::string&) -> absl::StatusOr<Json> { return item(status); }};
    const Json body = ParseJsonBody(R"({"previous_response_id":"r","input":"go on"})").value();
    return ReadResponse(body, Assets(), absl::UnixEpoch(), reading);
  };
  EXPECT_OK(read("incomplete"));
  EXPECT_OK(read("completed")) << "some clients send it for all items";
}

TEST(Response, WhatIsRefusedIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("input":5)", "input: 5, expected"},
      {R"("input":[5])", "input[0]: number"},
      {R"("input":[{"role":"tool","content":"x"}])", "input[0].role: "},
      {R"("input":[{"role":"user"}])", "input[0].content: missing"},
      {R"("input":[{"role":"user","content":[{"type":"input_audio"}]}])",
       "input[0].content[0].type: \"input_audio\""},
      {R"("input":[{"role":"user","content":[{"text":"a"}]}])",
       "input[0].content[0].type: missing"},
      {R"("input":[{"type":"item_reference","id":"m"}])", "input[0].type: \"item_reference\""},
      {R"("input":[{"type":"function_call","call_id":"c","arguments":"{}"}])", "input[0].name: "},
      {R"("input":[{"type":"function_call","name":"f","arguments":"{}"}])", "input[0].call_id: "},
      {R"("input":[{"type":"function_call","name":"f","call_id":"c"}])", "input[0].arguments: "},
      {R"("input":[{"type":"function_call_output","call_id":"c","output":"o"}])",
       "input[0].call_id: "},
      {R"("input":[{"type":"function_call","name":"f","call_id":"c","arguments":{}}])",
       "input[0].arguments: "},
      {R"("include":[5])", "include[0]: 5"},
      {R"("include":{})", "include: "},
      {R"("tools":[{"type":"mcp"}])", "tools[0].type: \"mcp\""},
      {R"("tools":[{"type":"function"}])", "tools[0].name: "},
      {R"("tools":[{"type":"function","name":"f","parameters":5}])", "tools[0].parameters: 5"},
      {R"("tool_choice":{"type":"allowed_tools"})", "tool_choice.type: \"allowed_tools\""},
      {R"("tool_choice":"required")", "tool_choice: given without tools"},
      {R"("text":{"verbosity":"loud"})", "text.verbosity: \"loud\""},
      {R"("text":{"format":{"type":"json_schema","schema":{}}})", "text.format.name: "},
      {R"("text":{"format":{"type":"json_object"}},"structured_outputs":{"regex":"a"})",
       "text.format: given beside structured_outputs.regex"},
      {R"("reasoning":{"effort":"huge"})", "reasoning.effort: \"huge\""},
      {R"("truncation":"some")", "truncation: \"some\""},
      {R"("service_tier":5)", "service_tier: 5"},
      {R"("metadata":{"a":5})", "metadata.a: "},
      {R"("stream_options":{"include_obfuscation":5})", "stream_options.include_obfuscation: 5"},
      {R"("messages":[])", "messages: not a field of this endpoint, expected input"},
      {R"("n":2)", "n: 2, expected 1"},
      {R"("background":true)", "background: "},
      {R"("conversation":"c")", "conversation: "},
      {R"("prompt":{"id":"p"})", "prompt: "},
      {R"("prompt_logprobs":1)", "prompt_logprobs: "},
      {R"("enable_response_messages":true)", "enable_response_messages: "}};
  for (const auto& [members, message] : cases) {
    const auto api = Response(members);
    ASSERT_FALSE(api.ok()) << members;
    EXPECT_THAT(std::string(api.status().message()), StartsWith(message)) << members;
  }
  EXPECT_OK(Response(R"("include":["x","reasoning.encrypted_content"])", true));
  EXPECT_OK(Response(R"("hot":1)"));
  EXPECT_THAT(Response(R"("hot":1)", true),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("hot: unknown field")));
  EXPECT_OK(Response(R"("store":false,"user":"u","prompt_cache_key":"k","strict":true)", true));
}

TEST(Response, FieldsOfChatsAreRenamed) {
  EXPECT_EQ(ToResponseFieldNames(absl::InvalidArgumentError("messages[1].role: x")).message(),
            "input[1].role: x");
  EXPECT_EQ(ToResponseFieldNames(absl::InvalidArgumentError("max_tokens: 5")).message(),
            "max_output_tokens: 5");
  EXPECT_EQ(ToResponseFieldNames(absl::InvalidArgumentError("max_tokens_x: 5")).message(),
            "max_tokens_x: 5");
}

// ---- events

v1::GenerateResponse Started() {
  v1::GenerateResponse part;
  part.mutable_started()->set_prompt_tokens(3);
  return part;
}

v1::GenerateResponse Finished(v1::FinishReason reason) {
  v1::GenerateResponse part;
  part.mutable_finished()->set_reason(reason);
  part.mutable_finished()->mutable_usage()->set_output_tokens(2);
  return part;
}

std::unique_ptr<AnswerFormat> Format(const std::string& members) {
  ApiRequest api = Response(members).value();
  api.prompts = 1;
  return NewResponseFormat(std::move(api), {"resp_1", 7, "m", "f"}, *Assets().tokenizer);
}

// All events of an answer with this text, `bytes` at a time.
std::string Events(AnswerFormat& format, const std::string& text, size_t bytes,
                   v1::FinishReason reason = v1::FINISH_REASON_STOP) {
  std::string events;
  format.Add(0, Started(), &events);
  for (size_t at = 0; at < text.size(); at += bytes) {
    format.AddText(0, 0, absl::string_view(text).substr(at, bytes), &events);
  }
  format.Add(0, Finished(reason), &events);
  format.EndEvents(events);
  return events;
}

// The types of events, each a line's name and its object's, one of several in a row that are alike.
std::vector<std::string> TypesOf(const std::string& events, Json* last = nullptr) {
  std::vector<std::string> types;
  int64_t number = 0;
  for (absl::string_view block : absl::StrSplit(events, "\n\n", absl::SkipEmpty())) {
    const std::pair<std::string, std::string> lines =
        absl::StrSplit(block, absl::MaxSplits('\n', 1));
    const Json event = Json::parse(lines.second.substr(sizeof("data: ") - 1));
    const std::string type = event["type"];
    EXPECT_EQ(lines.first, "event: " + type);
    EXPECT_EQ(event["sequence_number"], number++);
    if (types.empty() || types.back() != type.substr(sizeof("response.") - 1)) {
      types.push_back(type.substr(sizeof("response.") - 1));
    }
    if (last != nullptr) *last = event;
  }
  return types;
}

std::string WholeOf(AnswerFormat& format, const std::string& text) {
  format.Add(0, Started(), nullptr);
  format.AddText(0, 0, text, nullptr);
  format.Add(0, Finished(v1::FINISH_REASON_STOP), nullptr);
  return format.ToJson();
}

TEST(ResponseEvents, ATextIsOneMessage) {
  Json last;
  EXPECT_THAT(TypesOf(Events(*Format(R"("user":"u")"), "a \"b\"\n", 2), &last),
              ElementsAre("created", "in_progress", "output_item.added", "content_part.added",
                          "output_text.delta", "output_text.done", "content_part.done",
                          "output_item.done", "completed"));
  EXPECT_EQ(last["response"]["output"][0]["content"][0]["text"], "a \"b\"\n");
  EXPECT_EQ(last["response"]["usage"]["total_tokens"], 5);
  EXPECT_EQ(last["response"]["user"], "u");
  TypesOf(Events(*Format(R"("user":"u")"), "a", 1, v1::FINISH_REASON_LENGTH), &last);
  EXPECT_EQ(last["type"], "response.incomplete");
  EXPECT_EQ(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
  TypesOf(Events(*Format(R"("user":"u")"), "a", 1, v1::FINISH_REASON_ABORTED), &last);
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["error"]["code"], "server_error");
}

TEST(ResponseEvents, CallsAreItemsHoweverTheyCome) {
  const std::string call = R"(<tool_call>{"name":"f","arguments":{"x":1}}</tool_call>)";
  const std::string text = absl::StrCat("\n Now: ", call, "\n", call, "\n", "then");
  const Json whole = Json::parse(WholeOf(*Format(kTool), text));
  std::vector<std::string> types;
  for (const Json& item : whole["output"]) types.push_back(item["type"]);
  EXPECT_THAT(types, ElementsAre("message", "function_call", "function_call", "message"));
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "\n Now: ");
  EXPECT_EQ(whole["output"][1]["arguments"], R"({"x":1})");
  EXPECT_EQ(whole["output"][3]["content"][0]["text"], "\nthen");
  for (const size_t bytes : {size_t{1}, size_t{2}, size_t{7}, text.size()}) {
    Json last;
    TypesOf(Events(*Format(kTool), text, bytes), &last);
    EXPECT_EQ(last["response"]["output"], whole["output"]) << bytes;
  }
  // A blank is a message only where it is all there is.
  EXPECT_EQ(Json::parse(WholeOf(*Format(kTool), call + "\n"))["output"].size(), 1u);
  EXPECT_EQ(Json::parse(WholeOf(*Format(kTool), " "))["output"][0]["content"][0]["text"], " ");
  const std::string single = absl::StrCat(kTool, R"(,"parallel_tool_calls":false)");
  EXPECT_EQ(Json::parse(WholeOf(*Format(single), call + call))["output"].size(), 1u);
}

TEST(ResponseEvents, ACutCallIsIncomplete) {
  const std::string list = R"([{"name":"f","parameters":{"x":1}},{"name":"f","parameters":{"x":")";
  for (const auto reason : {v1::FINISH_REASON_STOP, v1::FINISH_REASON_LENGTH}) {
    Json last;
    TypesOf(Events(*Format(absl::StrCat(kTool, R"(,"tool_choice":"required")")), list, 3, reason),
            &last);
    const Json& items = last["response"]["output"];
    ASSERT_EQ(items.size(), 2u);
    EXPECT_EQ(items[0]["status"], "completed");
    EXPECT_EQ(items[1]["status"], "incomplete");
  }
  Json last;
  const std::string named = R"(,"tool_choice":{"type":"function","name":"f"})";
  TypesOf(Events(*Format(absl::StrCat(kTool, named)), R"({"x":")", 3), &last);
  EXPECT_EQ(last["response"]["output"][0]["status"], "incomplete");
}

TEST(ResponseEvents, WhatHasEndedIsKeptOnce) {
  for (const auto reason :
       {v1::FINISH_REASON_STOP, v1::FINISH_REASON_LENGTH, v1::FINISH_REASON_ABORTED}) {
    ApiRequest api = Response(R"("user":"u")").value();
    api.prompts = 1;
    api.response->items = "[]";
    std::vector<std::string> kept;
    api.response->keep = [&](const std::string& id, std::string object, std::string items) {
      EXPECT_EQ(Json::parse(object)["id"], id);
      EXPECT_EQ(items, "[]");
      kept.push_back(Json::parse(object)["status"]);
    };
    const auto format =
        NewResponseFormat(std::move(api), {"resp_1", 7, "m", "f"}, *Assets().tokenizer);
    Events(*format, "a", 1, reason);
    EXPECT_EQ(kept.size(), reason == v1::FINISH_REASON_ABORTED ? 0u : 1u);
  }
}

TEST(ResponseEvents, AnAnswerThatBreaksOffFails) {
  const auto format = Format(R"("user":"u")");
  std::string events;
  format->Add(0, Started(), &events);
  format->AddText(0, 0, "half", &events);
  format->FailEvents(absl::UnavailableError("gone"), events);
  Json last;
  TypesOf(events, &last);
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["error"]["message"], "gone");
  EXPECT_TRUE(last["response"]["usage"].is_null());
  EXPECT_EQ(last["response"]["output"][0]["status"], "incomplete");
  EXPECT_EQ(last["response"]["output"][0]["content"][0]["text"], "half");
}

}  // namespace
}  // namespace tandem::router
