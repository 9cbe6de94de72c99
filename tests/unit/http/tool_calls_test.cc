// Goal: tool calls are found in any split of an answer's text, also where the answer is cut off.
#include "router/front_end/http/tool_calls.h"

#include <gmock/gmock.h>

#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem::router {
namespace {

// The pieces of `text` given out a few bytes at a time, joined up.
ToolPieces Found(ToolMode mode, const std::string& text, size_t piece, bool parallel = true) {
  ApiRequest api;
  api.tool_mode = mode;
  api.tool_name = "named";
  api.parallel_calls = parallel;
  ToolCallFinder finder(api);
  ToolPieces all;
  const auto add = [&all](ToolPieces pieces) {
    all.content += pieces.content;
    for (ToolCall& call : pieces.calls) all.calls.push_back(std::move(call));
  };
  for (size_t at = 0; at < text.size(); at += piece) {
    add(finder.Append(absl::string_view(text).substr(at, piece)));
  }
  add(finder.Flush());
  EXPECT_EQ(finder.found(), !all.calls.empty());
  return all;
}

TEST(ToolCalls, AreFoundInAnySplit) {
  const std::string text =
      "Let me <see>.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"
      "<tool_call>{\"name\":\"g\"}</tool_call> and <tool_call>not a call</tool_call> <tool_";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    const ToolPieces pieces = Found(ToolMode::kAuto, text, piece);
    ASSERT_EQ(pieces.calls.size(), 2u) << piece;
    EXPECT_EQ(pieces.calls[0].name, "f");
    EXPECT_EQ(pieces.calls[0].arguments, R"({"x":1})");
    EXPECT_EQ(pieces.calls[1].arguments, "{}");
    EXPECT_EQ(pieces.content, "Let me <see>. and <tool_call>not a call</tool_call> <tool_");
  }
}

// The content without blanks around calls, of `text` given out a few bytes at a time.
std::string ContentWithoutBlanks(const std::string& text, size_t piece) {
  ApiRequest api;
  api.tool_mode = ToolMode::kAuto;
  ToolCallFinder finder(api);
  std::string content;
  for (size_t at = 0; at < text.size(); at += piece) {
    content += finder.AppendWithoutBlanks(absl::string_view(text).substr(at, piece)).content;
  }
  return content + finder.FlushWithoutBlanks().content;
}

TEST(ToolCalls, BlanksAroundThemAreNotText) {
  const std::string call = R"(<tool_call>{"name":"f"}</tool_call>)";
  const std::pair<std::string, const char*> cases[] = {
      {absl::StrCat("\n\n", call, "\n", call, " \n"), ""},
      {absl::StrCat("\n", call, "\n<tool_call>{\"name\":\"g\"}"), ""},
      {absl::StrCat(" so\n", call, "\n", call, " and ", call, "\n"), " so\n and "},
      {" \n", " \n"},
      {"\n\nno call ", "\n\nno call "}};
  for (const auto& [text, content] : cases) {
    for (size_t piece = 1; piece <= text.size(); ++piece) {
      EXPECT_EQ(ContentWithoutBlanks(text, piece), content) << text << " in pieces of " << piece;
    }
  }
}

TEST(ToolCalls, OfSeveralThatAreNotParallelTheFirstIsGiven) {
  const std::string text =
      R"(I <tool_call>{"name":"f"}</tool_call>, <tool_call>{"name":"g"}</tool_call><tool_call>{"name":"h"})";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    const ToolPieces pieces = Found(ToolMode::kAuto, text, piece, /*parallel=*/false);
    ASSERT_EQ(pieces.calls.size(), 1u) << piece;
    EXPECT_EQ(pieces.calls[0].name, "f");
    EXPECT_EQ(pieces.content, "I , ");
  }
  const ToolPieces list = Found(ToolMode::kRequired, R"([{"name":"a"},{"name":"b"}])", 4, false);
  ASSERT_EQ(list.calls.size(), 1u);
  EXPECT_EQ(list.calls[0].name, "a");
  EXPECT_EQ(list.content, "");
}

// Each token of an open call is looked at once: looking at all of them for each, this took minutes.
TEST(ToolCalls, LongOnesAreReadOnce) {
  const std::string argument(8 << 20, '<');
  const std::string text =
      absl::StrCat(R"(<tool_call>{"name":"f","arguments":{"x":")", argument, R"("}}</tool_call>)");
  const ToolPieces pieces = Found(ToolMode::kAuto, text, 4);
  ASSERT_EQ(pieces.calls.size(), 1u);
  EXPECT_EQ(pieces.calls[0].arguments.size(), argument.size() + 8);
  EXPECT_EQ(pieces.content, "");
}

TEST(ToolCalls, EndWhereTheAnswerDoes) {
  const ToolPieces open = Found(ToolMode::kAuto, R"(<tool_call>{"name":"f","arguments":{}})", 3);
  ASSERT_EQ(open.calls.size(), 1u);
  EXPECT_EQ(open.content, "");
  const ToolPieces named = Found(ToolMode::kNamed, R"({"x":1})", 2);
  ASSERT_EQ(named.calls.size(), 1u);
  EXPECT_EQ(named.calls[0].name, "named");
  const ToolPieces list = Found(
      ToolMode::kRequired, R"([{"name":"a","parameters":{}},{"name":"b","parameters":{}}])", 4);
  EXPECT_EQ(list.calls.size(), 2u);
}

// Clients parse a call's arguments as an object.
TEST(ToolCalls, TextIsArgumentsOnlyIfItIsAnObject) {
  const ToolPieces object =
      Found(ToolMode::kAuto, R"(<tool_call>{"name":"f","arguments":"{\"x\":1}"}</tool_call>)", 3);
  ASSERT_EQ(object.calls.size(), 1u);
  EXPECT_EQ(object.calls[0].arguments, R"({"x":1})");
  const std::string path = R"(<tool_call>{"name":"f","arguments":"/tmp/x"}</tool_call>)";
  EXPECT_EQ(Found(ToolMode::kAuto, path, 3).content, path);
}

// No parsed number holds these digits.
TEST(ToolCalls, ArgumentsKeepTheModelsSpelling) {
  const std::string arguments =
      R"({"wei":25123456789012345678,"e":1.50e+3,"s":"a : \"}{ \u00e9","l":[-0.0,{"x":""}]})";
  const std::string call =
      absl::StrCat(R"({"\u0078":"}","name":"pay","arguments":)", arguments, "}");
  const std::string kinds[] = {
      absl::StrCat("<tool_call>", call, "</tool_call>"), absl::StrCat("[", call, ", ", call, "]"),
      absl::StrCat("[", call, R"(,{"name":"pay","parameters":)", arguments, "},{\"na")};
  for (const std::string& text : kinds) {
    const bool required = text[0] == '[';
    const ToolPieces pieces = Found(required ? ToolMode::kRequired : ToolMode::kAuto, text, 5);
    ASSERT_EQ(pieces.calls.size(), required ? 2u : 1u) << text;
    for (const ToolCall& found : pieces.calls) EXPECT_EQ(found.arguments, arguments);
  }
  const std::string spaced =
      R"(<tool_call>{"name": "f", "arguments" : {"x" : [1 , 2], "y": " "} }</tool_call>)";
  EXPECT_EQ(Found(ToolMode::kAuto, spaced, 9).calls[0].arguments, R"({"x":[1,2],"y":" "})");
  // The name is spelt in another way.
  const std::string escaped = R"(<tool_call>{"name":"f","\u0061rguments":{"x": 1}}</tool_call>)";
  EXPECT_EQ(Found(ToolMode::kAuto, escaped, 9).calls[0].arguments, R"({"x":1})");
}

TEST(ToolCalls, AStringMayHoldAClosingMark) {
  const std::string arguments = R"({"s":"a</tool_call>\"<tool_call></tool_call>"})";
  const std::string text = absl::StrCat(R"(so <tool_call>{"name":"w","arguments":)", arguments,
                                        R"(}</tool_call><tool_call>{"name":"g"}</tool_call>.)");
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    const ToolPieces pieces = Found(ToolMode::kAuto, text, piece);
    ASSERT_EQ(pieces.calls.size(), 2u) << piece;
    EXPECT_EQ(pieces.calls[0].arguments, arguments);
    EXPECT_EQ(pieces.calls[1].name, "g");
    EXPECT_EQ(pieces.content, "so .");
  }
  const std::string open = text.substr(0, text.find("}</tool_call><tool_call>{\"name\":\"g\"") + 1);
  EXPECT_EQ(Found(ToolMode::kAuto, open, 3).calls.size(), 1u);
}

// Where the quotes of a section do not match, its first mark ends it, and calls behind it are
// found.
TEST(ToolCalls, AMarkInWhatIsNoStringEndsTheSection) {
  const std::string call = R"(<tool_call>{"name":"g"}</tool_call>)";
  const std::string kinds[] = {R"(<tool_call>{"name":"f,"arguments":{}}</tool_call>)",
                               R"(<tool_call>{"</tool_call>)", "<tool_call>{\"a\n</tool_call>",
                               "<tool_call>{\"a</tool_call>\n"};
  for (const std::string& section : kinds) {
    const std::string text = absl::StrCat(section, " then ", call, " end");
    for (size_t piece = 1; piece <= text.size(); ++piece) {
      const ToolPieces pieces = Found(ToolMode::kAuto, text, piece);
      ASSERT_EQ(pieces.calls.size(), 1u) << text << " in pieces of " << piece;
      EXPECT_EQ(pieces.content, section + " then  end");
    }
  }
  // Reading each section to the end of the answer would take minutes.
  std::string many;
  for (int i = 0; i < 100000; ++i) many += i % 2 == 0 ? "<tool_call>{\"" : "</tool_call>\\\\\"\\";
  EXPECT_EQ(Found(ToolMode::kAuto, many, 4).content, many);
}

TEST(ToolCalls, OfAnyTextTheSplitDoesNotMatter) {
  static const char* const kUnits[] = {"<tool_call>",
                                       "</tool_call>",
                                       "{\"",
                                       "\"",
                                       "\\",
                                       "\n",
                                       "}",
                                       "<",
                                       "a",
                                       R"(<tool_call>{"name":"f","arguments":{"x":")",
                                       R"("}}</tool_call>)"};
  constexpr uint32_t kSeed = 11;
  std::mt19937 random(kSeed);
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  size_t calls = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t i = 0, n = 1 + random() % 40; i < n; ++i)
      text += kUnits[random() % std::size(kUnits)];
    const ToolPieces whole = Found(ToolMode::kAuto, text, text.size());
    const ToolPieces pieces = Found(ToolMode::kAuto, text, 1 + random() % 5);
    ASSERT_EQ(pieces.content, whole.content) << text;
    ASSERT_EQ(pieces.calls.size(), whole.calls.size()) << text;
    calls += whole.calls.size();
  }
  EXPECT_GT(calls, 100u);
}

// An answer that its length cut off is still calls, the last one with what there is of its
// arguments, wherever it was cut.
TEST(ToolCalls, ACutListIsCallsToo) {
  const std::string whole =
      R"([{"name":"a","parameters":{"x":"}{\""}}, {"name": "b", "parameters": {"y": [1, 2]}}])";
  const size_t first_end = whole.find("}},") + 2;
  const size_t second_name = whole.find(R"("parameters": )");
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    SCOPED_TRACE(whole.substr(0, cut));
    const ToolPieces pieces = Found(ToolMode::kRequired, whole.substr(0, cut), 4);
    EXPECT_EQ(pieces.content, "");
    if (cut < first_end) continue;
    ASSERT_GE(pieces.calls.size(), 1u);
    EXPECT_TRUE(pieces.calls[0].whole);
    EXPECT_EQ(pieces.calls[0].arguments, R"({"x":"}{\""})");
    if (cut < second_name + 13) continue;
    ASSERT_EQ(pieces.calls.size(), 2u);
    EXPECT_EQ(pieces.calls[1].name, "b");
    // Whole arguments are written anew, without spaces.
    const std::string& arguments = pieces.calls[1].arguments;
    EXPECT_EQ(pieces.calls[1].whole, absl::EndsWith(arguments, "}"));
    EXPECT_TRUE(arguments == R"({"y":[1,2]})" || absl::StartsWith(R"({"y": [1, 2]})", arguments))
        << arguments;
  }
}

// Constraints let a model give a name twice, and nest deeper than a client's body may. JSON readers
// take the last one.
TEST(ToolCalls, NamesGivenTwiceAndDeepNestingAreCalls) {
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  for (const std::string& arguments :
       {std::string(R"({"x":1,"y":{"z":1,"z":2},"x":2})"), absl::StrCat("{\"x\":", deep, "}")}) {
    SCOPED_TRACE(arguments);
    const std::string list = absl::StrCat(R"([{"name":"f","parameters":{}},)",
                                          R"({"name":"g","parameters":)", arguments, "}]");
    const ToolPieces required = Found(ToolMode::kRequired, list, 7);
    ASSERT_EQ(required.calls.size(), 2u);
    EXPECT_EQ(required.calls[1].arguments, arguments);
    EXPECT_TRUE(required.calls[1].whole);
    const ToolPieces named = Found(ToolMode::kNamed, arguments, 7);
    ASSERT_EQ(named.calls.size(), 1u);
    EXPECT_TRUE(named.calls[0].whole);
    const ToolPieces section = Found(
        ToolMode::kAuto,
        absl::StrCat(R"(<tool_call>{"name":"f","arguments":)", arguments, "}</tool_call>"), 7);
    ASSERT_EQ(section.calls.size(), 1u);
    EXPECT_EQ(section.calls[0].arguments, arguments);
  }
  const ToolPieces twice =
      Found(ToolMode::kRequired, R"([{"name":"f","parameters":{"x":1},"parameters":{"x":2}}])", 7);
  ASSERT_EQ(twice.calls.size(), 1u);
  EXPECT_EQ(twice.calls[0].arguments, R"({"x":2})");
}

}  // namespace
}  // namespace tandem::router
