// Goal: the template interpreter renders what Python's jinja2 renders, on whole chat templates of
// the supported model families and on a table of small expressions, and fails where it fails.
#include "common/model/chat_template/chat_template.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/model/architecture/registry.h"
#include "tests/testing/status_matchers.h"

namespace tandem::model {
namespace {

using Json = nlohmann::ordered_json;

std::string ReadText(const std::string& name) {
  std::ifstream in(absl::StrCat(TANDEM_SOURCE_DIR, "/tests/golden/chat_template/", name),
                   std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_FALSE(text.str().empty()) << name;
  return text.str();
}

const Json& Goldens() {
  static const Json goldens = Json::parse(ReadText("goldens.json"));
  return goldens;
}

absl::StatusOr<std::string> Render(const std::string& source,
                                   const ChatTemplate::RenderInput& input) {
  absl::StatusOr<std::unique_ptr<ChatTemplate>> parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(input);
}

// Compares a rendering with what jinja2 gave: the same text, or an error with the same message
// where the message is the template's own, and the same line where it is a syntax error.
void ExpectLikeGolden(const absl::StatusOr<std::string>& rendered, const Json& golden,
                      const std::string& what) {
  if (golden.contains("output")) {
    ASSERT_TRUE(rendered.ok()) << what << ": " << rendered.status();
    EXPECT_EQ(*rendered, golden["output"].get<std::string>()) << what;
    return;
  }
  ASSERT_FALSE(rendered.ok()) << what << ": expected " << golden["error"] << ", got '" << *rendered
                              << "'";
  EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument) << what;
  EXPECT_TRUE(absl::StartsWith(rendered.status().message(), "chat template line "))
      << what << ": " << rendered.status();
  if (golden.contains("message")) {
    EXPECT_TRUE(absl::EndsWith(rendered.status().message(),
                               absl::StrCat(": ", golden["message"].get<std::string>())))
        << what << ": " << rendered.status();
  }
}

// The conversation of a golden.
ChatTemplate::RenderInput ConversationOf(const Json& golden) {
  const Json& input = Goldens()["inputs"][golden["case"].get<std::string>()];
  ChatTemplate::RenderInput render;
  render.messages = input["messages"];
  render.tools = input.value("tools", Json());
  render.documents = input.value("documents", Json());
  render.add_generation_prompt = input.value("add_generation_prompt", true);
  render.bos_token = "<s>";
  render.eos_token = "</s>";
  render.now = absl::FromUnixSeconds(Goldens()["now_unix"].get<int64_t>());
  render.extra = input.value("extra", Json());
  return render;
}

TEST(ChatTemplateGolden, ConversationsRenderAsJinja2RendersThem) {
  size_t rendered_count = 0;
  for (const Json& golden : Goldens()["conversations"]) {
    const auto name = golden["template"].get<std::string>();
    const std::string source = ReadText(absl::StrCat("templates/", name));
    ExpectLikeGolden(Render(source, ConversationOf(golden)), golden,
                     absl::StrCat(name, " / ", golden["case"].get<std::string>()));
    rendered_count += golden.contains("output") ? 1 : 0;
  }
  EXPECT_GE(rendered_count, 150u);
}

// A request of up to 64 KiB is rendered on the thread that read it, which serves other clients. A
// template of any of the families takes a hundredth of the steps that a rendering may take for the
// most messages that such a request can have.
TEST(ChatTemplateGolden, ShortRequestsTakeFewSteps) {
  constexpr size_t kBytes = 64 << 10;  // LongWork::kShortBytesMax
  constexpr size_t kMessageBytes = sizeof(R"({"role":"user","content":""},)") - 1;
  ChatTemplate::RenderInput input;
  input.messages = Json::array();
  for (size_t bytes = 0; bytes < kBytes; bytes += kMessageBytes) {
    const bool user = input.messages.size() % 2 == 0;
    input.messages.push_back({{"role", user ? "user" : "assistant"}, {"content", ""}});
  }
  TemplateLimits limits;
  limits.steps_max /= 100;
  for (const auto& file : std::filesystem::directory_iterator(
           absl::StrCat(TANDEM_SOURCE_DIR, "/tests/golden/chat_template/templates"))) {
    const std::string name = file.path().filename().string();
    if (name == "constructs.jinja") continue;  // no model's
    const auto parsed = ChatTemplate::Parse(ReadText("templates/" + name), limits);
    ASSERT_OK(parsed.status()) << name;
    EXPECT_OK((*parsed)->Render(input).status()) << name;
  }
}

// Gemma 3's own template, for checkpoints without one, renders what a template of such a checkpoint
// renders. It leaves out images, refuses roles that Gemma 3 does not know, and renders a
// conversation without messages as an empty one.
TEST(ChatTemplateGolden, TheArchitecturesTemplateRendersGemmasForm) {
  const Architecture* gemma3 = ArchitectureRegistry::BuiltIn().FindByName("gemma3");
  ASSERT_NE(gemma3, nullptr);
  const std::string source(gemma3->chat_template);
  size_t compared = 0;
  for (const Json& golden : Goldens()["conversations"]) {
    const auto name = golden["case"].get<std::string>();
    if (golden["template"] != "gemma3_like.jinja" || name == "empty" || name == "parts") continue;
    const absl::StatusOr<std::string> rendered = Render(source, ConversationOf(golden));
    const bool accepts =
        golden.contains("output") && name != "system twice" && name != "unknown role";
    EXPECT_EQ(rendered.ok(), accepts) << name << ": " << rendered.status();
    if (!rendered.ok() || !golden.contains("output")) continue;
    EXPECT_EQ(*rendered, golden["output"].get<std::string>()) << name;
    ++compared;
  }
  EXPECT_GE(compared, 5u);
}

TEST(ChatTemplateGolden, ExpressionsRenderAsJinja2RendersThem) {
  const Json& goldens = Goldens();
  ASSERT_GE(goldens["expressions"].size(), 150u);
  ChatTemplate::RenderInput render;
  render.now = absl::FromUnixSeconds(goldens["now_unix"].get<int64_t>());
  render.extra = goldens["variables"];
  for (const Json& golden : goldens["expressions"]) {
    const auto source = golden["source"].get<std::string>();
    ExpectLikeGolden(Render(source, render), golden, source);
  }
}

}  // namespace
}  // namespace tandem::model
