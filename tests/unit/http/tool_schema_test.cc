// Goal: where tool_choice demands a call of any tool, each tool's parameters mean what they mean
// alone: a reference or an anchor stays within its tool, and names that look like keywords stay
// names. Errors name the tool. A form of the answer beside tools leaves room for calls.
#include "router/front_end/http/tool_schema.h"

#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "router/front_end/http/anthropic_format.h"
#include "router/front_end/http/anthropic_request.h"
#include "router/front_end/http/chat_format.h"
#include "router/front_end/http/chat_request.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/guided/acceptance.h"

namespace tandem::router {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const ModelAssets& Assets() {
  static const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  return *assets;
}

// A chat that demands a call of one of the functions "f0", "f1", … with these parameters.
ApiRequest Demanding(const std::vector<std::string>& parameters, const std::string& choice) {
  std::string tools;
  for (size_t i = 0; i < parameters.size(); ++i) {
    absl::StrAppend(&tools, i == 0 ? "" : ",", R"({"type":"function","function":{"name":"f)", i,
                    R"(","parameters":)", parameters[i], "}}");
  }
  const Json body =
      ParseJsonBody(absl::StrCat(R"({"messages":[{"role":"user","content":"u"}],)", R"("tools":[)",
                                 tools, R"(],"tool_choice":)", choice, "}"))
          .value();
  return ReadChat(body, Assets(), absl::UnixEpoch(), true).value();
}

guided::Acceptor AcceptorOf(const std::vector<std::string>& parameters) {
  const ApiRequest api = Demanding(parameters, R"("required")");
  const std::string& schema = api.requests[0].guided().json_schema();
  auto acceptor = guided::Acceptor::Create(request::GuidedParams::Kind::kJsonSchema, schema);
  EXPECT_OK(acceptor.status()) << schema;
  return *std::move(acceptor);
}

std::string CallOf(int function, const std::string& arguments) {
  return absl::StrCat(R"([{"name":"f)", function, R"(","parameters":)", arguments, "}]");
}

absl::Status VerdictOn(const ApiRequest& api) {
  const absl::Status verdict = Assets().constraints->Check(rpc::FromWire(api.requests[0].guided()));
  return absl::Status(verdict.code(), absl::StrCat("guided: ", verdict.message()));
}

guided::Acceptor AcceptorOfGrammar(const ApiRequest& api) {
  const std::string& grammar = api.requests[0].guided().grammar();
  auto acceptor = guided::Acceptor::Create(request::GuidedParams::Kind::kGrammar, grammar);
  EXPECT_OK(acceptor.status()) << grammar;
  return *std::move(acceptor);
}

// A tool whose "place" is of this schema, which it calls Place.
std::string WithPlace(const std::string& place, const std::string& definitions = "$defs") {
  return absl::StrCat(R"({"type":"object","properties":{"place":{"$ref":"#/)", definitions,
                      R"(/Place"}},"required":["place"],"additionalProperties":false,")",
                      definitions, R"(":{"Place":)", place, "}}");
}

TEST(ToolSchema, EachToolKeepsItsOwnDefinitions) {
  const auto calls = AcceptorOf(
      {WithPlace(R"({"type":"string"})"), WithPlace(R"({"type":"integer"})", "definitions")});
  EXPECT_TRUE(calls.Accepts(CallOf(0, R"({"place":"Rome"})")));
  EXPECT_TRUE(calls.Accepts(CallOf(1, R"({"place":7})")));
  EXPECT_FALSE(calls.Accepts(CallOf(0, R"({"place":7})")));
  EXPECT_FALSE(calls.Accepts(CallOf(1, R"({"place":"Rome"})")));
}

TEST(ToolSchema, ReferencesToTheRootAndToAnchorsStayInTheTool) {
  // "a" is a list of the same; "b" is what the anchor says; both by an absolute reference too.
  const auto tool = [](const std::string& anchored) {
    return absl::StrCat(R"({"$id":"https://a/b","$schema":"https://json-schema.org/draft","type":)",
                        R"("object","properties":{"a":{"type":"array","items":{"$ref":"#"}},)",
                        R"("b":{"$ref":"#there"},"c":{"$ref":"https://a/b#/$defs/x"}},)",
                        R"("additionalProperties":false,"$defs":{"x":{"$anchor":"there","type":")",
                        anchored, R"("}}})");
  };
  const auto calls = AcceptorOf({tool("string"), tool("boolean")});
  EXPECT_TRUE(calls.Accepts(CallOf(0, R"({"a":[{"a":[],"b":"x"}],"b":"y","c":"z"})")));
  EXPECT_TRUE(calls.Accepts(CallOf(1, R"({"a":[{"b":true}],"b":false,"c":true})")));
  EXPECT_FALSE(calls.Accepts(CallOf(1, R"({"b":"y"})")));
  EXPECT_FALSE(calls.Accepts(CallOf(1, R"({"c":"y"})")));
  EXPECT_FALSE(calls.Accepts(CallOf(0, R"({"a":[{"b":true}]})")));
}

TEST(ToolSchema, NamesAndDataThatLookLikeReferencesStay) {
  const auto calls = AcceptorOf(
      {R"({"type":"object","properties":{"$ref":{"type":"string"},"const":{"$ref":"#/$defs/n"},
           "d":{"const":{"$ref":"#/$defs/n"}},"e":{"enum":[{"$anchor":"x"}]}},
           "additionalProperties":false,"$defs":{"n":{"type":"integer"}}})"});
  EXPECT_TRUE(calls.Accepts(CallOf(0, R"({"$ref":"#","const":3})")));
  EXPECT_TRUE(calls.Accepts(CallOf(0, R"({"d":{"$ref":"#/$defs/n"},"e":{"$anchor":"x"}})")));
  EXPECT_FALSE(calls.Accepts(CallOf(0, R"({"const":"x"})")));
}

// A schema need not say that it is an object's, and a call's arguments are one all the same.
TEST(ToolSchema, ArgumentsAreObjects) {
  const std::string recursive =
      R"({"$ref":"#/$defs/n","$defs":{"n":{"properties":{"x":{"$ref":"#/$defs/n"}}}}})";
  for (const std::string& schema :
       {std::string("{}"), std::string("null"), std::string(R"({"properties":{"x":{}}})"),
        std::string(R"({"type":["object","string","integer"]})"),
        std::string(R"({"type":["object","null"],"properties":{"x":{}},
                        "unevaluatedProperties":false})"),
        std::string(R"({"type":["integer","object"],"allOf":[{"minProperties":0}]})"),
        std::string(R"({"anyOf":[{"type":"integer"},{"type":"object"},{"type":"array"}]})"),
        std::string(R"({"enum":[5,{"x":7},[1],"text",{}]})"), recursive}) {
    SCOPED_TRACE(schema);
    const auto calls = AcceptorOf({schema, schema});
    const ApiRequest named = Demanding({schema}, R"({"type":"function","function":{"name":"f0"}})");
    ASSERT_OK_AND_ASSIGN(auto arguments,
                         guided::Acceptor::Create(request::GuidedParams::Kind::kJsonSchema,
                                                  named.requests[0].guided().json_schema()));
    for (const char* object : {"{}", R"({"x":7})"}) {
      EXPECT_TRUE(calls.Accepts(CallOf(1, object))) << object;
      EXPECT_TRUE(arguments.Accepts(object)) << object;
    }
    for (const char* other : {"5", "[1]", "\"text\"", "null"}) {
      EXPECT_FALSE(calls.Accepts(CallOf(1, other))) << other;
      EXPECT_FALSE(arguments.Accepts(other)) << other;
    }
  }
  // Below the root any value may follow.
  EXPECT_TRUE(AcceptorOf({recursive}).Accepts(CallOf(0, R"({"x":5})")));
  for (const char* never : {R"({"type":"string"})", R"({"type":["integer","null"]})",
                            R"({"type":"string","allOf":{}})", R"({"type":5})"}) {
    EXPECT_EQ(VerdictOn(Demanding({never}, R"("required")")).code(),
              absl::StatusCode::kInvalidArgument)
        << never;
  }
}

TEST(ToolSchema, ErrorsNameTheTool) {
  const std::string good = R"({"type":"object"})";
  const auto message_of = [&](const std::string& wrong, const char* choice) {
    ApiRequest api = Demanding({good, wrong}, choice);
    const absl::Status status = VerdictOn(api);
    const auto format = NewChatFormat(std::move(api), {}, *Assets().tokenizer);
    return std::string(format->TranslateFieldNames(status).message());
  };
  const std::string wrong = R"({"type":"object","properties":{"x":{"not":{}}}})";
  EXPECT_THAT(message_of(wrong, R"("required")"),
              StartsWith("tools: json_schema: #/$defs/tools[1]/properties/x: not: "));
  EXPECT_THAT(message_of(R"({"$ref":"#/$defs/y"})", R"("required")"),
              StartsWith(R"(tools: json_schema: $ref "#/$defs/tools[1]/$defs/y": )"));
  EXPECT_THAT(message_of(wrong, R"({"type":"function","function":{"name":"f1"}})"),
              StartsWith("tools[1]: json_schema: #/properties/x: not: "));
}

// A request with tools `f0`, `f1`, … and other members.
absl::StatusOr<ApiRequest> WithTools(size_t tools, const std::string& members) {
  std::string list;
  for (size_t i = 0; i < tools; ++i) {
    absl::StrAppend(&list, i == 0 ? "" : ",", R"({"type":"function","function":{"name":"f)", i,
                    "\"}}");
  }
  const Json body = ParseJsonBody(absl::StrCat(R"({"messages":[{"role":"user","content":"u"}],)",
                                               R"("tools":[)", list, "],", members, "}"))
                        .value();
  return ReadChat(body, Assets(), absl::UnixEpoch(), false);
}

// Before a schema of them is made, which would take minutes.
TEST(ToolSchema, TooManyToolsToDemandAreRefusedByTheirNumber) {
  EXPECT_THAT(WithTools(100'000, R"("tool_choice":"required")"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("tools: 100000 tools, expected at most 256 where the ")));
  EXPECT_OK(WithTools(kConstrainingToolsMax, R"("tool_choice":"required")"));
  EXPECT_OK(WithTools(kConstrainingToolsMax + 1,
                      R"("tool_choice":{"type":"function","function":{"name":"f256"}})"));
}

// The answer has the form, or it consists of calls.
TEST(ToolSchema, AFormBesideToolsLeavesRoomForCalls) {
  constexpr char kForm[] = R"({"type":"object","properties":{"x":{"type":"integer"}},
      "required":["x"],"additionalProperties":false})";
  const std::string forms[] = {
      absl::StrCat(R"("guided_json":)", kForm),
      absl::StrCat(R"("guided_json":)", JsonText(Json(kForm))),
      absl::StrCat(R"("response_format":{"type":"json_schema","json_schema":{"schema":)", kForm,
                   "}}")};
  const std::string call = R"(<tool_call>{"name": "f1", "arguments": {"y": 1}}</tool_call>)";
  for (const std::string& form : forms) {
    SCOPED_TRACE(form);
    ASSERT_OK_AND_ASSIGN(const ApiRequest api, WithTools(2, form));
    EXPECT_EQ(api.tool_mode, ToolMode::kAuto);
    ASSERT_OK(VerdictOn(api));
    const auto answer = AcceptorOfGrammar(api);
    EXPECT_TRUE(answer.Accepts(R"({"x": 7})"));
    EXPECT_TRUE(answer.Accepts(call));
    EXPECT_TRUE(answer.Accepts(absl::StrCat(call, "\n", call)));
    EXPECT_TRUE(answer.Accepts("<tool_call>\n{\"name\":\"f0\",\"arguments\":{}}\n</tool_call>\n"));
    for (const std::string& other :
         {std::string("text"), std::string(R"({"y": 7})"), absl::StrCat(call, R"({"x": 7})"),
          absl::StrCat(R"({"x": 7})", call), absl::StrCat("text", call),
          std::string(R"(<tool_call>{"name": "f2", "arguments": {}}</tool_call>)"),
          std::string(R"(<tool_call>{"name": "f1", "arguments": 7}</tool_call>)"),
          std::string("<tool_call></tool_call>")}) {
      EXPECT_FALSE(answer.Accepts(other)) << other;
    }
  }
  ASSERT_OK_AND_ASSIGN(const ApiRequest object,
                       WithTools(1, R"("response_format":{"type":"json_object"})"));
  EXPECT_TRUE(AcceptorOfGrammar(object).Accepts(R"({"any": []})"));
  EXPECT_FALSE(AcceptorOfGrammar(object).Accepts("[]"));
  ASSERT_OK_AND_ASSIGN(const ApiRequest one,
                       WithTools(2, absl::StrCat(forms[0], R"(,"parallel_tool_calls":false)")));
  EXPECT_TRUE(AcceptorOfGrammar(one).Accepts(call));
  EXPECT_FALSE(AcceptorOfGrammar(one).Accepts(call + call));
}

TEST(ToolSchema, AFormStaysAsItIsWhereNoCallCanFollow) {
  const std::string form = R"("guided_json":{"type":"object"})";
  for (const auto& api : {WithTools(1, form + R"(,"tool_choice":"none")"), WithTools(0, form)}) {
    ASSERT_OK(api);
    EXPECT_EQ(api->requests[0].guided().json_schema(), R"({"type":"object"})");
  }
  // The client may have made calls a part of it.
  ASSERT_OK_AND_ASSIGN(const ApiRequest own,
                       WithTools(1, R"("guided_regex":"<tool_call>.*</tool_call>")"));
  EXPECT_TRUE(own.requests[0].guided().has_regex());
  // What is no schema is refused, and not read as a part of a grammar.
  for (const char* wrong : {R"("guided_json":"{} | \"x\"")", R"("guided_json":"{")",
                            R"("guided_json":"false")", R"("guided_json":{"not":{}})"}) {
    ASSERT_OK_AND_ASSIGN(const ApiRequest api, WithTools(1, wrong));
    const absl::Status verdict = VerdictOn(api);
    EXPECT_EQ(verdict.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(verdict.message(), Not(HasSubstr("grammar"))) << "which no client sent: " << wrong;
  }
  ASSERT_OK_AND_ASSIGN(const ApiRequest any, WithTools(1, R"("guided_json":" true ")"));
  EXPECT_OK(VerdictOn(any));
  EXPECT_THAT(WithTools(kConstrainingToolsMax + 1, form),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("tools: 257 tools, ")));
}

TEST(ToolSchema, AToolChoiceOfAnotherKindIsNamed) {
  EXPECT_THAT(WithTools(1, R"("tool_choice":{"type":"allowed_tools","allowed_tools":{}})"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       StartsWith(R"(tool_choice.type: "allowed_tools", expected "function")")));
  EXPECT_OK(WithTools(1, R"("tool_choice":{"function":{"name":"f0"}})"));
}

TEST(ToolSchema, AnthropicsErrorsNameAFieldOfTheRequest) {
  const std::vector<std::pair<const char*, const char*>> choices = {
      {R"({"type":"any"})", "tools: json_schema: "},
      {R"({"type":"tool","name":"f"})", "tools[0]: json_schema: "}};
  for (const auto& [choice, expected] : choices) {
    const Json body =
        ParseJsonBody(absl::StrCat(R"({"messages":[{"role":"user","content":"u"}],"max_tokens":9,
            "tools":[{"name":"f","input_schema":{"not":{}}}],"tool_choice":)",
                                   choice, "}"))
            .value();
    ASSERT_OK_AND_ASSIGN(ApiRequest api, ReadAnthropic(body, Assets(), {}));
    const absl::Status status = VerdictOn(api);
    const auto format = NewAnthropicFormat(std::move(api), {}, *Assets().tokenizer);
    EXPECT_THAT(std::string(format->TranslateFieldNames(status).message()), StartsWith(expected));
  }
}

}  // namespace
}  // namespace tandem::router
