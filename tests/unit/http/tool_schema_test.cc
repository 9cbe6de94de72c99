// Goal: where tool_choice demands a call of any tool, each tool's parameters mean what they mean
// alone: a reference or an anchor stays within its tool, and names that look like keywords stay
// names. Errors name the tool.
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
