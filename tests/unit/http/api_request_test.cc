// Goal: every parameter of OpenAI's API and of vLLM's lands in the field of our request that means
// the same; what is refused names its field; unknown fields matter only to strict clients.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>

#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/completion_request.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<ApiRequest> Completion(const std::string& body, bool strict = false) {
  const absl::StatusOr<Json> json = ParseJsonBody(body);
  if (!json.ok()) return json.status();
  return ReadCompletion(*json, strict);
}

// What changes an answer is served under the names that other servers give it, or refused by name.
TEST(ForeignNames, AreServedOrRefused) {
  const auto read = [](const std::string& members) {
    absl::StatusOr<ApiRequest> api = Completion(R"({"prompt":"a",)" + members + "}");
    EXPECT_OK(api.status()) << members;
    return api.ok() ? std::move(api->requests.at(0)) : v1::GenerateRequest();
  };
  EXPECT_EQ(read(R"("n_predict":7)").stop().max_tokens(), 7);
  EXPECT_EQ(read(R"("max_new_tokens":8)").stop().max_tokens(), 8);
  EXPECT_EQ(read(R"("min_new_tokens":2)").stop().min_tokens(), 2);
  EXPECT_FLOAT_EQ(read(R"("repeat_penalty":1.5)").sampling().repetition_penalty(), 1.5);
  EXPECT_EQ(read(R"("grammar":"root ::= \"a\"")").guided().grammar(), "root ::= \"a\"");
  EXPECT_EQ(read(R"("json_schema":{"type":"null"})").guided().json_schema(), R"({"type":"null"})");
  for (const char* type : {"json_object", "json_schema"}) {
    EXPECT_EQ(
        read(absl::StrCat(R"("response_format":{"type":")", type, R"(","schema":{"type":"null"}})"))
            .guided()
            .json_schema(),
        R"({"type":"null"})");
  }
  const v1::GenerateRequest search =
      read(R"("use_beam_search":true,"n":3,"length_penalty":0.5,"early_stopping":true)");
  EXPECT_EQ(search.beam_search().width(), 3);
  EXPECT_FLOAT_EQ(search.beam_search().length_penalty(), 0.5);
  read(R"("typical_p":1,"mirostat":0,"dry_multiplier":0.0,"lora_request":null,"documents":[])");
  for (const char* members : {R"("typical_p":0.9)", R"("mirostat":2)", R"("dry_multiplier":0.8)",
                              R"("lora_request":{"lora_name":"x"})", R"("structural_tag":{"a":1})",
                              R"("documents":[{"text":"x"}])", R"("xtc_probability":0.5)"}) {
    const absl::Status status =
        Completion(absl::StrCat(R"({"prompt":"a",)", members, "}")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << members << ": " << status;
    const std::string text = members;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text.substr(1, text.find('"', 1) - 1)));
  }
}

// A batch may ask for as many sequences, and hold as many bytes, as a router can serve at a time.
TEST(Batch, IsBoundedOverItsPrompts) {
  const auto batch = [](int prompts, const std::string& members) {
    std::string all = "\"a\"";
    for (int i = 1; i < prompts; ++i) all += ",\"a\"";
    return Completion("{\"prompt\":[" + all + "]" + members + "}").status();
  };
  EXPECT_OK(batch(1024, ""));
  EXPECT_OK(batch(1024, R"(,"n":8)"));
  EXPECT_THAT(
      std::string(batch(1024, R"(,"n":9)").message()),
      HasSubstr("1024 prompts of 9 sequences each are 9216 sequences, expected at most 8192"));
  EXPECT_THAT(std::string(batch(65, R"(,"best_of":127)").message()), HasSubstr("8255 sequences"));
  const auto grammar = [](size_t bytes) {
    return R"(,"guided_grammar":"root ::= \"a\" )" + std::string(bytes, ' ') + "\"";
  };
  EXPECT_OK(batch(1024, grammar(60'000)));
  EXPECT_THAT(std::string(batch(1024, grammar(66'000)).message()),
              HasSubstr("bytes, expected at most 67108864 in one request"));
  EXPECT_OK(batch(2, grammar(250'000)));
}

constexpr char kMessages[] =
    R"("messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}])";

absl::StatusOr<ApiRequest> Chat(const std::string& members,
                                const std::string& messages = kMessages) {
  static const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  const std::string all = messages + members;
  const absl::StatusOr<Json> json = ParseJsonBody("{" + all.substr(messages.empty() ? 1 : 0) + "}");
  if (!json.ok()) return json.status();
  return ReadChat(*json, *assets, absl::UnixEpoch(), false);
}

TEST(Completion, EverySamplingParameterIsMapped) {
  ASSERT_OK_AND_ASSIGN(const ApiRequest api, Completion(R"({
      "model":"m","prompt":"p","temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,
      "repetition_penalty":1.2,"presence_penalty":0.3,"frequency_penalty":-0.4,"seed":-2,
      "logit_bias":{"5":-1.5},"allowed_token_ids":[3,4],"logprobs":2,"max_tokens":9,"min_tokens":2,
      "stop":["a","b"],"stop_token_ids":[8],"ignore_eos":true,"include_stop_str_in_output":true,
      "n":2,"best_of":3,"skip_special_tokens":false,"bad_words":["w"],"priority":4,"deadline_s":2.5,
      "cache_salt":"salt","return_token_ids":true,"prompt_logprobs":1,"user":"u","timing":true})"));
  ASSERT_EQ(api.requests.size(), 1u);
  const v1::GenerateRequest& request = api.requests[0];
  EXPECT_EQ(request.model(), "m");
  EXPECT_EQ(request.text(), "p");
  const v1::SamplingParams& sampling = request.sampling();
  EXPECT_EQ(sampling.temperature(), 0.5);
  EXPECT_EQ(sampling.top_p(), 0.9);
  EXPECT_EQ(sampling.top_k(), 7);
  EXPECT_EQ(sampling.min_p(), 0.1);
  EXPECT_EQ(sampling.repetition_penalty(), 1.2);
  EXPECT_EQ(sampling.presence_penalty(), 0.3);
  EXPECT_EQ(sampling.frequency_penalty(), -0.4);
  EXPECT_EQ(sampling.seed(), ~uint64_t{1});
  EXPECT_EQ(sampling.logit_bias().at(5), -1.5f);
  EXPECT_THAT(sampling.allowed_token_ids(), ElementsAre(3, 4));
  EXPECT_EQ(sampling.logprobs(), 2);
  const v1::StopParams& stop = request.stop();
  EXPECT_EQ(stop.max_tokens(), 9);
  EXPECT_EQ(stop.min_tokens(), 2);
  EXPECT_THAT(stop.stop(), ElementsAre("a", "b"));
  EXPECT_THAT(stop.stop_token_ids(), ElementsAre(8));
  EXPECT_TRUE(stop.ignore_eos());
  EXPECT_TRUE(stop.include_stop_str_in_output());
  EXPECT_EQ(request.n(), 2);
  EXPECT_EQ(request.best_of(), 3);
  EXPECT_TRUE(request.keep_special_tokens());
  EXPECT_THAT(request.bad_words(), ElementsAre("w"));
  EXPECT_EQ(request.priority(), 4);
  EXPECT_EQ(request.deadline_s(), 2.5);
  EXPECT_EQ(request.cache_salt(), "salt");
  EXPECT_TRUE(request.return_token_ids());
  EXPECT_EQ(request.prompt_logprobs(), 1);
  EXPECT_TRUE(api.timing);
}

TEST(Completion, LeavesOutWhatWasNotSaid) {
  ASSERT_OK_AND_ASSIGN(const ApiRequest api, Completion(R"({"prompt":"p","temperature":null})"));
  const v1::GenerateRequest& request = api.requests[0];
  EXPECT_FALSE(request.sampling().has_temperature());
  EXPECT_FALSE(request.sampling().has_seed());
  EXPECT_FALSE(request.has_n());
  EXPECT_FALSE(request.has_guided());
  EXPECT_EQ(request.stop().max_tokens(), 16);  // OpenAI's default
}

TEST(Completion, PromptsComeInFourForms) {
  ASSERT_OK_AND_ASSIGN(ApiRequest api, Completion(R"({"prompt":[1,2]})"));
  EXPECT_THAT(api.requests[0].tokens().ids(), ElementsAre(1, 2));
  ASSERT_OK_AND_ASSIGN(api, Completion(R"({"prompt":["a","b"]})"));
  ASSERT_EQ(api.requests.size(), 2u);
  EXPECT_EQ(api.requests[1].text(), "b");
  ASSERT_OK_AND_ASSIGN(api, Completion(R"({"prompt":[[1],[2,3]]})"));
  EXPECT_THAT(api.requests[1].tokens().ids(), ElementsAre(2, 3));
}

TEST(Completion, ConstraintsBecomeGuidedDecoding) {
  ASSERT_OK_AND_ASSIGN(ApiRequest api, Completion(R"({"prompt":"p","guided_regex":"a+"})"));
  EXPECT_EQ(api.requests[0].guided().regex(), "a+");
  ASSERT_OK_AND_ASSIGN(api, Completion(R"({"prompt":"p","guided_choice":["x","y"]})"));
  EXPECT_THAT(api.requests[0].guided().choice().options(), ElementsAre("x", "y"));
  ASSERT_OK_AND_ASSIGN(api, Completion(R"({"prompt":"p","guided_json":{"type":"object"}})"));
  EXPECT_EQ(api.requests[0].guided().json_schema(), R"({"type":"object"})");
  ASSERT_OK_AND_ASSIGN(api, Completion(R"({"prompt":"p","structured_outputs":{"grammar":"g"}})"));
  EXPECT_EQ(api.requests[0].guided().grammar(), "g");
  ASSERT_OK_AND_ASSIGN(api,
                       Completion(R"({"prompt":"p","response_format":{"type":"json_object"}})"));
  EXPECT_TRUE(api.requests[0].guided().json_object());
  ASSERT_OK_AND_ASSIGN(api, Completion(R"({"prompt":"p","response_format":{"type":"json_schema",
      "json_schema":{"name":"n","schema":{"type":"string"}}}})"));
  EXPECT_EQ(api.requests[0].guided().json_schema(), R"({"type":"string"})");
}

// No part of a constraint goes unheeded: what is not served is refused by name.
// The constraint decides what it can hold, and sees what was written.
TEST(Completion, SchemasKeepEveryDigitOfTheirNumbers) {
  const std::string schema =
      R"({"anyOf":[{"const":123456789012345678901234567890},{"minimum":-18446744073709551617}]})";
  for (const char* member :
       {R"("guided_json":)", R"("json_schema":)", R"("structured_outputs":{"json":)",
        R"("response_format":{"type":"json_schema","json_schema":{"name":"s","schema":)"}) {
    const auto open = std::count(member, member + strlen(member), '{');
    ASSERT_OK_AND_ASSIGN(
        const ApiRequest api,
        Completion(absl::StrCat(R"({"prompt":"p",)", member, schema,
                                std::string(static_cast<size_t>(open), '}'), "}")));
    EXPECT_EQ(api.requests[0].guided().json_schema(), schema);
  }
}

TEST(Completion, AnEmptyGrammarOfLlamaCppIsNone) {
  ASSERT_OK_AND_ASSIGN(ApiRequest api, Completion(R"({"prompt":"p","grammar":""})", true));
  EXPECT_FALSE(api.requests[0].has_guided());
  ASSERT_OK_AND_ASSIGN(
      api, Completion(R"({"prompt":"p","grammar":"","json_schema":{"type":"null"}})", true));
  EXPECT_EQ(api.requests[0].guided().json_schema(), R"({"type":"null"})");
  EXPECT_FALSE(Completion(R"({"prompt":"p","grammar":7})").ok());
}

TEST(Completion, StructuredOutputsHaveNoMemberThatIsNotRead) {
  const auto outputs = [](const std::string& members) {
    return Completion(absl::StrCat(R"({"prompt":"p","structured_outputs":{)", members, "}}"));
  };
  using ::absl::StatusCode;
  for (const char* tag : {R"({"type":"structural_tag"})", R"("<tag>")"}) {
    EXPECT_THAT(outputs(absl::StrCat(R"("structural_tag":)", tag)),
                StatusIs(StatusCode::kUnimplemented,
                         HasSubstr("structured_outputs.structural_tag: not served")));
  }
  EXPECT_THAT(outputs(R"("json":{},"disable_additional_properties":true)"),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("disable_additional_properties")));
  EXPECT_THAT(outputs(R"("regexp":"a")"),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("structured_outputs.regexp: unknown field, expected json")));
  // vLLM's clients send its defaults.
  ASSERT_OK_AND_ASSIGN(
      const ApiRequest api,
      outputs(R"("regex":"a+","json":null,"structural_tag":null,"disable_fallback":false,
                 "disable_any_whitespace":true,"disable_additional_properties":false,
                 "whitespace_pattern":"[ ]?","later":null)"));
  EXPECT_EQ(api.requests[0].guided().regex(), "a+");
}

// llama.cpp's name, and its values for an answer that only the context bounds.
TEST(Completion, LengthsOfLlamaCpp) {
  const auto limit = [](const std::string& members) {
    return Completion(absl::StrCat(R"({"prompt":"p",)", members, "}"))->requests[0].stop();
  };
  EXPECT_EQ(limit(R"("n_predict":7)").max_tokens(), 7);
  EXPECT_EQ(limit(R"("max_tokens":5,"n_predict":7)").max_tokens(), 7);
  EXPECT_EQ(limit(R"("n_predict":null)").max_tokens(), 16);
  for (const char* none : {"-1", "-2"}) {
    EXPECT_FALSE(limit(absl::StrCat(R"("n_predict":)", none)).has_max_tokens()) << none;
    EXPECT_FALSE(limit(absl::StrCat(R"("max_tokens":5,"n_predict":)", none)).has_max_tokens());
    ASSERT_OK_AND_ASSIGN(const ApiRequest chat, Chat(absl::StrCat(R"(,"n_predict":)", none)));
    EXPECT_FALSE(chat.requests[0].stop().has_max_tokens()) << none;
  }
  EXPECT_TRUE(limit(R"("n_predict":0)").has_max_tokens()) << "the prompt alone";
  for (const char* wrong : {"-3", "1.5", "2147483648"}) {
    EXPECT_THAT(Completion(absl::StrCat(R"({"prompt":"p","n_predict":)", wrong, "}")),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("n_predict: ")));
  }
}

TEST(Completion, BeamsReplaceSampling) {
  ASSERT_OK_AND_ASSIGN(const ApiRequest api, Completion(R"({"prompt":"p","use_beam_search":true,
      "n":2,"best_of":4,"length_penalty":0.5,"early_stopping":true})"));
  const v1::BeamSearch& search = api.requests[0].beam_search();
  EXPECT_EQ(search.width(), 4);
  EXPECT_EQ(search.length_penalty(), 0.5);
  EXPECT_TRUE(search.early_stopping());
  EXPECT_EQ(api.requests[0].n(), 2);
  EXPECT_FALSE(api.requests[0].has_best_of());
}

TEST(Completion, AnEchosLogprobsAreThoseOfThePrompt) {
  ASSERT_OK_AND_ASSIGN(
      const ApiRequest api,
      Completion(R"({"prompt":"p","echo":true,"logprobs":2,"prompt_logprobs":2})"));
  EXPECT_EQ(api.requests[0].prompt_logprobs(), 2);
  EXPECT_THAT(Completion(R"({"prompt":"p","echo":true,"logprobs":2,"prompt_logprobs":5})"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("prompt_logprobs: 5, expected 2 as in logprobs")));
  EXPECT_OK(Completion(R"({"prompt":"p","logprobs":2,"prompt_logprobs":5})"));
  EXPECT_OK(Completion(R"({"prompt":"p","echo":true,"prompt_logprobs":5})"));
}

TEST(Completion, UnknownFieldsMatterToStrictClientsOnly) {
  EXPECT_OK(Completion(R"({"prompt":"p","hot":1})"));
  EXPECT_THAT(Completion(R"({"prompt":"p","hot":1})", true),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("hot: unknown field")));
  EXPECT_OK(Completion(R"({"prompt":"p","user":"u","strict":true})", true));
  EXPECT_THAT(Completion(R"({"prompt":"p","strict":{}})"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("strict: ")));
}

TEST(Chat, RendersTheConversation) {
  ASSERT_OK_AND_ASSIGN(const ApiRequest api, Chat(R"(,"max_tokens":5,"max_completion_tokens":3)"));
  EXPECT_EQ(api.requests[0].stop().max_tokens(), 3);
  const std::string expected =
      "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n";
  std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  const auto& wire = api.requests[0].tokens().ids();
  const std::vector<TokenId> ids(wire.begin(), wire.end());
  EXPECT_EQ(assets->tokenizer->Decode(ids, false), expected);
}

std::string PromptOf(const ApiRequest& api) {
  static const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  const auto& ids = api.requests[0].tokens().ids();
  return assets->tokenizer->Decode(std::vector<TokenId>(ids.begin(), ids.end()), false);
}

// A chat whose messages are a question and this one.
absl::StatusOr<ApiRequest> ChatAfter(const std::string& message, const std::string& members) {
  return Chat(absl::StrCat(R"(,"messages":[{"role":"user","content":"u"},)", message, "]", members),
              "");
}

TEST(Chat, ContinuesTheLastMessage) {
  const std::string head = "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n";
  const std::string continues = R"(,"continue_final_message":true)";
  for (const std::string generates : {"", R"(,"add_generation_prompt":false)"}) {
    ASSERT_OK_AND_ASSIGN(const ApiRequest api,
                         ChatAfter(R"({"role":"assistant","content":"It is end "})",
                                   absl::StrCat(continues, generates)));
    EXPECT_EQ(PromptOf(api), head + "It is end ");
  }
  // Nothing was said yet.
  ASSERT_OK_AND_ASSIGN(ApiRequest api, ChatAfter(R"({"role":"assistant"})", continues));
  EXPECT_EQ(PromptOf(api), head);
  EXPECT_THAT(ChatAfter(R"({"role":"assistant","content":"a"})",
                        continues + R"(,"add_generation_prompt":true)"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("continue_final_message: given together")));
  for (
      const char* last :
      {R"({"role":"user","content":"a"})",
       R"({"role":"assistant","content":"a","tool_calls":[{"function":{"name":"f","arguments":""}}]})"}) {
    EXPECT_THAT(ChatAfter(last, continues),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("continue_final_message")))
        << last;
  }
}

TEST(Chat, AMessageThatTheTemplateTrimsIsContinuedAtItsEnd) {
  std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  ASSERT_OK_AND_ASSIGN(assets->chat_template,
                       model::ChatTemplate::Parse("{% for m in messages %}[{{ m['role'] }}] "
                                                  "{{ m['content'] | trim }}</s>{% endfor %}"));
  const Json json = ParseJsonBody(R"({"messages":[{"role":"assistant","content":" </s> or \n "}],
      "continue_final_message":true})")
                        .value();
  ASSERT_OK_AND_ASSIGN(const ApiRequest api, ReadChat(json, *assets, absl::UnixEpoch(), false));
  EXPECT_EQ(PromptOf(api), "[assistant] </s> or");
  ASSERT_OK_AND_ASSIGN(assets->chat_template, model::ChatTemplate::Parse("nothing of them"));
  EXPECT_THAT(
      ReadChat(json, *assets, absl::UnixEpoch(), false),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not write the last message")));
}

// The line end is the template's.
TEST(Chat, WhatTheTemplateWritesBeforeAContinuedMessageStays) {
  std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  const std::pair<const char*, const char*> cases[] = {
      {"", ""}, {" ", ""}, {R"(\n \t)", ""}, {R"( a\n)", "a"}};
  for (const char* trims : {"| trim", ".strip()", ".rstrip()"}) {
    ASSERT_OK_AND_ASSIGN(assets->chat_template,
                         model::ChatTemplate::Parse(absl::StrCat(
                             "{% for m in messages %}[{{ m['role'] }}]{{ '\n' }}{{ m['content']",
                             trims, " }}</s>{% endfor %}")));
    for (const auto& [content, said] : cases) {
      const Json json =
          ParseJsonBody(absl::StrCat(R"({"messages":[{"role":"assistant","content":")", content,
                                     R"("}],"continue_final_message":true})"))
              .value();
      ASSERT_OK_AND_ASSIGN(const ApiRequest api, ReadChat(json, *assets, absl::UnixEpoch(), false));
      const bool keeps_space = *said != 0 && absl::string_view(trims) == ".rstrip()";
      EXPECT_EQ(PromptOf(api), absl::StrCat("[assistant]\n", keeps_space ? " " : "", said))
          << trims << " of " << content;
    }
  }
}

TEST(Chat, ArgumentsOfTheTemplateReplaceNoMessages) {
  for (const char* name : {"messages", "tools"}) {
    EXPECT_THAT(Chat(absl::StrCat(R"(,"chat_template_kwargs":{"x":1,")", name, "\":5}")),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("chat_template_kwargs.", name, ": "))));
  }
}

TEST(Chat, AssistantsMayHaveSaidNothing) {
  for (const char* said : {"", R"(,"content":null)", R"(,"content":"")"}) {
    ASSERT_OK_AND_ASSIGN(const ApiRequest api,
                         ChatAfter(absl::StrCat(R"({"role":"assistant")", said, "}"), ""));
    EXPECT_EQ(PromptOf(api),
              "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
              "<|im_start|>assistant\n");
  }
  EXPECT_THAT(ChatAfter(R"({"role":"user","content":null})", ""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("messages[1].content")));
}

// OpenAI's API gives refusals a part of their own.
TEST(Chat, AnAssistantsRefusalIsItsText) {
  const auto prompt = [](const std::string& message) {
    return PromptOf(ChatAfter(message, "").value());
  };
  const std::string said = prompt(R"({"role":"assistant","content":"No.\nSorry."})");
  EXPECT_THAT(said, HasSubstr("No.\nSorry."));
  EXPECT_EQ(prompt(R"({"role":"assistant","content":[{"type":"refusal","refusal":"No."},
                      {"type":"text","text":"Sorry."}]})"),
            said);
  EXPECT_EQ(prompt(R"({"role":"assistant","content":null,"refusal":"No.\nSorry."})"), said);
  EXPECT_EQ(prompt(R"({"role":"assistant","content":"No.\nSorry.","refusal":null})"), said);
  EXPECT_THAT(ChatAfter(R"({"role":"user","content":[{"type":"refusal","refusal":"No."}]})", ""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("content[0].type")));
}

TEST(Completions, RefusesWhatItCannotCutOrContinue) {
  EXPECT_OK(Completion(R"({"prompt":"a","suffix":""})").status());
  EXPECT_THAT(Completion(R"({"prompt":"a","suffix":"b"})"),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("suffix")));
  for (const char* wrong : {"0", "-2", "1.5"}) {
    EXPECT_THAT(Completion(absl::StrCat(R"({"prompt":"a","truncate_prompt_tokens":)", wrong, "}")),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("truncate_prompt_tokens")));
  }
}

TEST(Chat, LogprobsAndTools) {
  EXPECT_THAT(Chat(R"(,"tools":[{"type":"function","function":{"name":""}}])"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tools[0].function")));
  ASSERT_OK_AND_ASSIGN(ApiRequest api, Chat(R"(,"logprobs":true,"top_logprobs":4)"));
  EXPECT_EQ(api.requests[0].sampling().logprobs(), 4);
  EXPECT_EQ(api.tool_mode, ToolMode::kNone);
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  ASSERT_OK_AND_ASSIGN(api, Chat(tools));
  EXPECT_EQ(api.tool_mode, ToolMode::kAuto);
  ASSERT_OK_AND_ASSIGN(api, Chat(tools + R"(,"tool_choice":"none")"));
  EXPECT_EQ(api.tool_mode, ToolMode::kNone);
  ASSERT_OK_AND_ASSIGN(
      api, Chat(tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})"));
  EXPECT_EQ(api.tool_mode, ToolMode::kNamed);
  EXPECT_EQ(api.requests[0].guided().json_schema(), R"({"type":"object"})");
  ASSERT_OK_AND_ASSIGN(api, Chat(tools + R"(,"tool_choice":"required")"));
  EXPECT_EQ(api.tool_mode, ToolMode::kRequired);
  EXPECT_THAT(api.requests[0].guided().json_schema(), HasSubstr(R"("enum":["f"])"));
  EXPECT_THAT(api.requests[0].guided().json_schema(), Not(HasSubstr("maxItems")));
  EXPECT_TRUE(api.parallel_calls);
  ASSERT_OK_AND_ASSIGN(api,
                       Chat(tools + R"(,"tool_choice":"required","parallel_tool_calls":false)"));
  EXPECT_FALSE(api.parallel_calls);
  EXPECT_THAT(api.requests[0].guided().json_schema(), HasSubstr(R"("maxItems":1)"));
  EXPECT_THAT(Chat(tools + R"(,"parallel_tool_calls":1)"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parallel_tool_calls")));
  // Clients write out what was left unsaid.
  const std::string bare =
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":null}}])";
  for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"f"}})"}) {
    ASSERT_OK_AND_ASSIGN(api, Chat(absl::StrCat(bare, R"(,"tool_choice":)", choice)));
    EXPECT_THAT(api.requests[0].guided().json_schema(), HasSubstr(R"({"type":"object"})"));
  }
  EXPECT_THAT(Chat(tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tool_choice.function.name")));
}

}  // namespace
}  // namespace tandem::router
