// Goal: conversations with the router's own ids of calls, or with none, become prompts of templates
// that take ids of 9 characters only; results keep pointing to their calls; the prompts of other
// templates have the ids that clients sent.
#include "router/front_end/call_ids.h"

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/ollama_request.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

// What Mistral's templates check, and with it a prompt that consists of ids.
constexpr char kStrict[] = R"jinja({%- for message in messages %}
{%- if message.tool_calls is defined and message.tool_calls is not none %}
  {%- for tool_call in message.tool_calls %}
    {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
      {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
    {%- endif %}
    {{- "[" + tool_call.id + "]" }}
  {%- endfor %}
{%- elif message["role"] == "tool" %}
  {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
    {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
  {%- endif %}
  {{- "(" + message.tool_call_id + ")" }}
{%- endif %}
{%- endfor %})jinja";
// The same without the checks.
constexpr char kLenient[] =
    "{% for m in messages %}{% for c in m.tool_calls or [] %}[{{ c.id }}]{% endfor %}"
    "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{% endfor %}";

std::unique_ptr<ModelAssets> AssetsWith(const std::string& chat_template) {
  std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  EXPECT_OK(assets->UseChatTemplate(chat_template));
  return assets;
}

std::string PromptOf(const ModelAssets& assets, const absl::StatusOr<ApiRequest>& api) {
  if (!api.ok()) return api.status().ToString();
  const auto& ids = api->requests[0].tokens().ids();
  return assets.tokenizer->Decode(std::vector<TokenId>(ids.begin(), ids.end()), false);
}

// The prompt of a conversation with these messages after the user's.
std::string PromptOf(const ModelAssets& assets, const std::string& messages) {
  const std::string body =
      absl::StrCat(R"({"messages":[{"role":"user","content":"u"},)", messages, "]}");
  return PromptOf(assets, ReadChat(ParseJsonBody(body).value(), assets, absl::UnixEpoch(), true));
}

// An assistant's message with calls of these ids.
std::string Calls(const std::vector<std::string>& ids) {
  Json calls = Json::array();
  for (const std::string& id : ids) {
    calls.push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}});
  }
  return JsonText(Json{{"role", "assistant"}, {"tool_calls", calls}});
}

std::string Result(const std::string& id) {
  return JsonText(Json{{"role", "tool"}, {"tool_call_id", id}, {"content", "r"}});
}

constexpr char kOwn[] = "call_0123456789abcdef_0_0";
constexpr char kOther[] = "call_0123456789abcdef_0_1";

TEST(CallIds, ThoseOfTheRouterAreShortenedByTheirPlace) {
  const auto assets = AssetsWith(kStrict);
  const std::string first =
      absl::StrCat(Calls({kOwn, kOther}), ",", Result(kOther), ",", Result(kOwn));
  EXPECT_EQ(PromptOf(*assets, first), "[000000000][000000001](000000001)(000000000)");
  // A longer conversation begins as the shorter one, also where a client uses an id again.
  EXPECT_EQ(PromptOf(*assets, absl::StrCat(first, ",", Calls({kOwn}), ",", Result(kOwn))),
            "[000000000][000000001](000000001)(000000000)[000000002](000000002)");
}

TEST(CallIds, ResultsWithoutAnIdFollowTheirCalls) {
  const auto assets = AssetsWith(kStrict);
  const Json body = ParseJsonBody(R"({"model":"hash","messages":[{"role":"user","content":"u"},
      {"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}},
                                        {"function":{"name":"g","arguments":{}}}]},
      {"role":"tool","tool_name":"f","content":"1"},
      {"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}}]},
      {"role":"tool","tool_name":"f","content":"2"}]})")
                        .value();
  EXPECT_EQ(PromptOf(*assets, ReadOllamaChat(body, *assets, {absl::UnixEpoch(), false})),
            "[000000000][000000001](000000000)[000000002](000000002)");
}

TEST(CallIds, ShortOnesStay) {
  const auto assets = AssetsWith(kStrict);
  EXPECT_EQ(PromptOf(*assets, absl::StrCat(Calls({"a1B2c3D4e"}), ",", Result("a1B2c3D4e"))),
            "[a1B2c3D4e](a1B2c3D4e)");
}

TEST(CallIds, OtherTemplatesGetThoseOfTheClient) {
  const auto assets = AssetsWith(kLenient);
  EXPECT_EQ(PromptOf(*assets, absl::StrCat(Calls({kOwn}), ",", Result(kOwn))),
            absl::StrCat("[", kOwn, "](", kOwn, ")"));
}

// One as Mistral publishes them, which looks at more than ids.
TEST(CallIds, APublishedTemplateTakesThem) {
  std::ifstream file(
      absl::StrCat(TANDEM_SOURCE_DIR, "/tests/golden/chat_template/templates/mistral_like.jinja"));
  std::stringstream source;
  source << file.rdbuf();
  const auto assets = AssetsWith(source.str());
  EXPECT_TRUE(assets->shows_tools);
  const std::string prompt = PromptOf(*assets, absl::StrCat(Calls({kOwn}), ",", Result(kOwn)));
  EXPECT_THAT(prompt, HasSubstr(R"("id": "000000000")"));
  EXPECT_THAT(prompt, HasSubstr(R"("call_id": "000000000")"));
}

// A template that refuses calls for another reason goes on to say so.
TEST(CallIds, OtherRefusalsStay) {
  const auto assets = AssetsWith(
      "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}"
      "{% endfor %}");
  EXPECT_FALSE(assets->needs_short_ids);
  EXPECT_THAT(PromptOf(*assets, Calls({kOwn})), HasSubstr("no calls"));
}

TEST(CallIds, TheNumberIsInBase36) {
  std::vector<std::string> ids(38, "x");
  nlohmann::ordered_json messages = nlohmann::ordered_json::array(
      {nlohmann::ordered_json::parse(Calls(ids)), nlohmann::ordered_json::parse(Result("x"))});
  ShortenCallIds(messages);
  EXPECT_EQ(messages[0]["tool_calls"][35]["id"], "00000000z");
  EXPECT_EQ(messages[0]["tool_calls"][36]["id"], "000000010");
  EXPECT_EQ(messages[1]["tool_call_id"], "000000011");
}

}  // namespace
}  // namespace tandem::router
