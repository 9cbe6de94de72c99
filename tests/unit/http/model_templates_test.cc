// Goal: which of a model's chat templates makes a prompt. Tools take the template that the model
// has for them; a template that cannot be used refuses chats and nothing else; --chat-template
// replaces both.
#include <gmock/gmock.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/completion_request.h"
#include "router/process/router_process.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/model/gguf_builder.h"

namespace tandem::router {
namespace {

using ::tandem::testing::Ask;
using ::tandem::testing::GgufBuilder;
using ::tandem::testing::HttpAnswer;
using ::tandem::testing::PostOf;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr char kTools[] = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
// Line 2 has what no template here may have.
constexpr char kUnusable[] = "a\n{% include 'x' %}";

class Templates : public ::testing::Test {
 protected:
  Templates() {
    std::string pattern = ::testing::TempDir() + "/tandem_templates_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Templates() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  // A model whose tokens are the bytes "a" and "b".
  std::string Model(const std::string& chat, const std::string& with_tools = "") const {
    GgufBuilder b = ::tandem::testing::TinyLlama();
    b.String("tokenizer.chat_template", chat);
    if (!with_tools.empty()) b.String("tokenizer.chat_template.tool_use", with_tools);
    return Write("model.gguf", b.Build());
  }

  // The prompt of a chat, or why there is none.
  static absl::StatusOr<std::string> PromptOf(const ModelAssets& assets,
                                              const std::string& members = "") {
    const Json body =
        ParseJsonBody(R"({"messages":[{"role":"user","content":"ab"}])" + members + "}").value();
    const auto api = ReadChat(body, assets, absl::UnixEpoch(), true);
    if (!api.ok()) return api.status();
    const auto& ids = api->requests[0].tokens().ids();
    return assets.tokenizer->Decode(std::vector<TokenId>(ids.begin(), ids.end()), false);
  }

  std::string folder_;
};

TEST_F(Templates, ToolsTakeTheirOwn) {
  ASSERT_OK_AND_ASSIGN(const auto assets,
                       ModelAssets::Load(Model("a", "{% if tools %}b{% endif %}")));
  EXPECT_EQ(PromptOf(*assets).value(), "a");
  EXPECT_EQ(PromptOf(*assets, kTools).value(), "b");
  EXPECT_EQ(PromptOf(*assets, std::string(kTools) + R"(,"tool_choice":"none")").value(), "a");
  ASSERT_OK_AND_ASSIGN(const auto one, ModelAssets::Load(Model("a{% if tools %}b{% endif %}")));
  EXPECT_EQ(PromptOf(*one).value(), "a");
  EXPECT_EQ(PromptOf(*one, kTools).value(), "ab");
  // Over gRPC.
  v1::ChatMessages chat;
  chat.add_messages()->set_role("user");
  EXPECT_EQ(assets->RenderChat(chat, absl::UnixEpoch()).value(), "a");
  chat.set_tools_json("[{}]");
  EXPECT_EQ(assets->RenderChat(chat, absl::UnixEpoch()).value(), "b");
}

TEST_F(Templates, ThoseForToolsAreTriedToo) {
  const char* const quadratic =
      "{% for m in messages %}{% for n in messages %}{% if n.role == 'tool' %}b{% endif %}"
      "{% endfor %}{% endfor %}";
  EXPECT_TRUE(ModelAssets::Load(Model("a", "b")).value()->renders_shortly);
  EXPECT_FALSE(ModelAssets::Load(Model("a", quadratic)).value()->renders_shortly);
}

TEST_F(Templates, OneThatCannotBeUsedRefusesChatsAlone) {
  ASSERT_OK_AND_ASSIGN(const auto assets, ModelAssets::Load(Model(kUnusable)));
  for (const char* members : {"", kTools}) {
    EXPECT_THAT(PromptOf(*assets, members),
                StatusIs(kInvalid, AllOf(HasSubstr("chat: "), HasSubstr("line 2"),
                                         HasSubstr("include"), HasSubstr("--chat-template"))));
  }
  EXPECT_OK(ReadCompletion(ParseJsonBody(R"({"prompt":"ab"})").value(), true).status());
  // Tools are never left out in silence.
  ASSERT_OK_AND_ASSIGN(const auto with_tools, ModelAssets::Load(Model("a", kUnusable)));
  EXPECT_EQ(PromptOf(*with_tools).value(), "a");
  EXPECT_THAT(PromptOf(*with_tools, kTools), StatusIs(kInvalid, HasSubstr("line 2")));
}

// By the name that clients know, whatever the checkpoint calls itself; folders often do not.
TEST_F(Templates, ErrorsNameTheModel) {
  const auto without = ModelAssets::ForHashEngine().value();
  without->chat_template = nullptr;
  ASSERT_OK_AND_ASSIGN(const auto unusable, ModelAssets::Load(Model(kUnusable)));
  for (ModelAssets* assets : {without.get(), unusable.get()}) {
    assets->identity.name = "A Title";
    assets->identity.served_names = {"served"};
    EXPECT_THAT(PromptOf(*assets), StatusIs(kInvalid, HasSubstr("model served ")));
  }
}

// A router without nodes. What /tokenize makes of a chat is the prompt.
class RouterOf {
 public:
  RouterOf(const std::string& model, const std::string& chat_template) {
    RouterConfig config;
    config.common.model = model;
    config.chat_template = chat_template;
    config.grpc = config.fleet = config.http = "127.0.0.1:0";
    auto router = StartRouter(config, {});
    status_ = router.status();
    if (router.ok()) router_ = *std::move(router);
  }
  const absl::Status& status() const { return status_; }
  HttpAnswer Post(const std::string& path, const std::string& body) const {
    return Ask(router_->http_address(), PostOf(path, body));
  }

 private:
  absl::Status status_;
  std::unique_ptr<RouterServer> router_;
};

TEST_F(Templates, RoutersStartWithAnUnusableOneAndTakeAnother) {
  const std::string model = Model(kUnusable, kUnusable);
  const std::string chat = R"({"messages":[{"role":"user","content":"ab"}])";
  {
    const RouterOf router(model, "");
    ASSERT_OK(router.status());
    const HttpAnswer refused = router.Post("/v1/chat/completions", chat + "}");
    EXPECT_EQ(refused.status, 400);
    EXPECT_THAT(refused.body, HasSubstr("line 2"));
    EXPECT_EQ(router.Post("/tokenize", R"({"prompt":"ab"})").status, 200);
  }
  const std::string file =
      Write("mine.jinja", "{{ messages[0].content }}{% if tools %}b{% endif %}");
  const RouterOf router(model, file);
  ASSERT_OK(router.status());
  EXPECT_THAT(router.Post("/tokenize", chat + "}").body, HasSubstr(R"("tokens":[5])"));
  EXPECT_THAT(router.Post("/tokenize", chat + kTools + "}").body, HasSubstr(R"("tokens":[5,4])"));
}

TEST_F(Templates, AFileThatCannotBeUsedEndsTheRouter) {
  const std::string model = Model("a");
  const std::string file = Write("mine.jinja", kUnusable);
  EXPECT_THAT(RouterOf(model, file).status(),
              StatusIs(kInvalid, AllOf(HasSubstr("chat-template: " + file), HasSubstr("line 2"))));
  EXPECT_THAT(RouterOf(model, folder_ + "/absent").status(),
              StatusIs(kInvalid, AllOf(HasSubstr("chat-template: "), HasSubstr("absent"))));
}

}  // namespace
}  // namespace tandem::router
