// Goal: an error about a constraint repeats its names and references up to a bound; of longer ones
// it tells the length.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "tests/unit/guided/acceptance.h"

namespace tandem::guided {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using enum request::GuidedParams::Kind;

TEST(LongNames, AreNotRepeatedInErrors) {
  using Text = std::function<std::string(const std::string&)>;
  const std::vector<std::pair<request::GuidedParams::Kind, Text>> cases = {
      {kGrammar, [](const auto& name) { return absl::StrCat("root ::= ", name); }},
      {kGrammar, [](const auto& name) { return absl::StrCat("root ::= \"a\"\n", name, " = 1"); }},
      {kGrammar,
       [](const auto& name) {
         return absl::StrCat("root ::= ", name, "\n", name, " ::= ", name, " \"a\" | \"b\"");
       }},
      {kRegex, [](const auto& name) { return absl::StrCat("\\p{", name, "}"); }},
      {kJsonSchema, [](const auto& name) { return absl::StrCat("{\"", name, "\":1}"); }},
      {kJsonSchema, [](const auto& name) { return absl::StrCat(R"({"type":")", name, "\"}"); }},
      {kJsonSchema,
       [](const auto& name) {
         return absl::StrCat(R"({"properties":{")", name, R"(":{"type":1}}})");
       }},
      {kJsonSchema, [](const auto& name) { return absl::StrCat(R"({"$ref":"#)", name, "\"}"); }},
      {kJsonSchema,
       [](const auto& name) {
         return absl::StrCat(R"({"type":"string","format":")", name, "\"}");
       }},
  };
  for (const auto& [kind, text] : cases) {
    SCOPED_TRACE(text("name"));
    // Quotes and a sign may belong to the text that is shown.
    const std::string most(kShownBytesMax - 2, 'x'), more(kShownBytesMax + 1, 'x');
    const std::string whole(Acceptor::Create(kind, text(most)).status().message());
    const std::string bounded(Acceptor::Create(kind, text(more)).status().message());
    EXPECT_THAT(whole, HasSubstr(most));
    EXPECT_THAT(bounded, AllOf(HasSubstr("a text of 1"), Not(HasSubstr(more)))) << bounded;
  }
}

TEST(LongNames, OfALongPathTheFirstKeysAreRepeated) {
  const std::string key(100, 'k');
  const auto message = [&](int depth) {
    std::string schema, end;
    for (int i = 0; i < depth; ++i) {
      schema += "{\"properties\":{\"" + key + "\":";
      end += "}}";
    }
    return std::string(
        Acceptor::Create(kJsonSchema, schema + "{\"type\":1}" + end).status().message());
  };
  EXPECT_THAT(message(8), HasSubstr(key + ": type"));
  EXPECT_THAT(message(20), HasSubstr("...: type"));
  EXPECT_LT(message(20).size(), 1200u);
}

}  // namespace
}  // namespace tandem::guided
