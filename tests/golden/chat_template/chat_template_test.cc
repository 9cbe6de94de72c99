// Goal: the template interpreter renders what Python's jinja2 renders, on whole chat templates of
// the supported model families and on a table of small expressions, and fails where it fails.
#include "common/model/chat_template/chat_template.h"

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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

TEST(ChatTemplateGolden, ConversationsRenderAsJinja2RendersThem) {
  const Json& goldens = Goldens();
  size_t rendered_count = 0;
  for (const Json& golden : goldens["conversations"]) {
    const Json& input = goldens["inputs"][golden["case"].get<std::string>()];
    ChatTemplate::RenderInput render;
    render.messages = input["messages"];
    render.tools = input.value("tools", Json());
    render.documents = input.value("documents", Json());
    render.add_generation_prompt = input.value("add_generation_prompt", true);
    render.bos_token = "<s>";
    render.eos_token = "</s>";
    render.now = absl::FromUnixSeconds(goldens["now_unix"].get<int64_t>());
    render.extra = input.value("extra", Json());
    const auto name = golden["template"].get<std::string>();
    const std::string source = ReadText(absl::StrCat("templates/", name));
    ExpectLikeGolden(Render(source, render), golden,
                     absl::StrCat(name, " / ", golden["case"].get<std::string>()));
    rendered_count += golden.contains("output") ? 1 : 0;
  }
  EXPECT_GE(rendered_count, 150u);
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
