// Goal: the public JSON-Schema-Test-Suite (draft 2020-12), one test a schema. A schema that
// compiles accepts exactly the suite's valid instances, byte by byte. A schema that does not
// compile gives an error that names one of its keywords. The instances are written as Tandem writes
// values: members in some order, whole numbers without a fraction.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/models.h"
#include "tests/unit/guided/acceptance.h"

namespace tandem::guided {
namespace {

using nlohmann::ordered_json;
constexpr size_t kSpellingsMax = 5040;  // orders of members to try

std::string NumberText(const ordered_json& number) {
  const double value = number.get<double>();
  if (number.is_number_float() && value == std::floor(value) && std::abs(value) < 1e15) {
    return absl::StrCat(static_cast<int64_t>(value));
  }
  return number.dump();
}

// The instance with its members in every order, at most kSpellingsMax of them.
std::vector<std::string> Spellings(const ordered_json& value) {
  if (value.is_number()) return {NumberText(value)};
  if (!value.is_structured()) return {value.dump()};
  std::vector<std::pair<std::string, std::vector<std::string>>> members;
  for (const auto& [key, member] : value.items()) {
    members.push_back(
        {value.is_object() ? ordered_json(key).dump() + ": " : "", Spellings(member)});
  }
  std::vector<size_t> order(members.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<std::string> all;
  do {
    std::vector<std::string> texts = {value.is_object() ? "{" : "["};
    for (size_t i = 0; i < order.size(); ++i) {
      std::vector<std::string> longer;
      for (const std::string& text : texts) {
        for (const std::string& member : members[order[i]].second) {
          longer.push_back(text + (i == 0 ? "" : ", ") + members[order[i]].first + member);
          if (longer.size() > kSpellingsMax) break;
        }
      }
      texts = std::move(longer);
    }
    for (std::string& text : texts) all.push_back(text + (value.is_object() ? "}" : "]"));
  } while (value.is_object() && all.size() < kSpellingsMax &&
           std::next_permutation(order.begin(), order.end()));
  return all;
}

bool AcceptsInstance(const Acceptor& acceptor, const ordered_json& instance) {
  const std::vector<std::string> texts = Spellings(instance);
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return acceptor.Accepts(text); });
}

// Valid instances that Tandem never generates; docs/GUIDED.md lists them too.
bool NeverGenerated(const std::string& from, const ordered_json& instance) {
  // The suite reads `format` as an annotation there: its strings have other forms.
  if (absl::StartsWith(from, "format: ")) return instance.is_string();
  // Read as doubles that have no exact decimal form.
  if (instance.is_number_float() && std::abs(instance.get<double>()) > 9e15) {
    return from != "optional/bignum: number";
  }
  if (!instance.is_string()) return false;
  const std::string text = instance;
  const auto in = [&](const char* format) {
    return absl::StartsWith(from, std::string("optional/format/") + format);
  };
  if (in("time") || in("date-time")) {  // leap seconds, lower case
    return absl::StrContains(text, ":60") || absl::StrContains(text, "z");
  }
  if (in("email")) return text[0] == '"' || absl::StrContains(text, "[");
  if (in("ipv6")) return absl::StrContains(text, ".");
  if (in("uri")) return absl::StrContains(text, "[");
  return false;
}

// The message has "KEYWORD: " for a keyword that the schema has somewhere.
bool NamesKeyword(const std::string& message, const ordered_json& schema) {
  if (!schema.is_structured()) return false;
  for (const auto& [key, value] : schema.items()) {
    if (schema.is_object() &&
        (absl::StrContains(message, key + ": ") || absl::StrContains(message, key + " \""))) {
      return true;
    }
    if (NamesKeyword(message, value)) return true;
  }
  return false;
}

// The suite has no schema with both keywords.
TEST(JsonSchema, UnevaluatedTrueDemandsNothing) {
  const auto acceptor = Acceptor::Create(request::GuidedParams::Kind::kJsonSchema,
                                         R"({"type":"object","properties":{"a":{"type":"integer"}},
          "additionalProperties":false,"unevaluatedProperties":true})");
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  EXPECT_TRUE(acceptor->Accepts(R"({"a":1})"));
  EXPECT_FALSE(acceptor->Accepts(R"({"a":1,"b":2})"));
}

// Names of members that are keywords elsewhere.
TEST(JsonSchema, AnchorsAreFoundBelowMembersOfAnyName) {
  for (const char* name : {"const", "enum", "default", "examples", "properties"}) {
    const auto acceptor = Acceptor::Create(
        request::GuidedParams::Kind::kJsonSchema,
        absl::StrCat(R"({"properties":{")", name,
                     R"(":{"$anchor":"A","const":1},"b":{"$ref":"#A"}},"required":["b"],)",
                     R"("additionalProperties":false})"));
    ASSERT_TRUE(acceptor.ok()) << acceptor.status();
    EXPECT_TRUE(acceptor->Accepts(R"({"b":1})"));
    EXPECT_FALSE(acceptor->Accepts(R"({"b":2})"));
  }
  const auto data = Acceptor::Create(request::GuidedParams::Kind::kJsonSchema,
                                     R"({"const":{"$anchor":"A"},"anyOf":[{"$ref":"#A"}]})");
  EXPECT_THAT(data.status().message(), ::testing::HasSubstr("no such $anchor"));
}

TEST(JsonSchema, APatternIsNotTakenForAFormat) {
  const auto acceptor =
      Acceptor::Create(request::GuidedParams::Kind::kJsonSchema,
                       R"({"type":"array","prefixItems":[{"type":"string","format":"date"},
          {"type":"string","pattern":"\u0001date"}],"minItems":2,"maxItems":2})");
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  EXPECT_TRUE(acceptor->Accepts(R"(["2026-01-02","\u0001date"])"));
  EXPECT_FALSE(acceptor->Accepts(R"(["2026-01-02","2026-01-02"])"));
}

TEST(JsonSchema, UrisHaveOneAuthority) {
  const auto acceptor = Acceptor::Create(request::GuidedParams::Kind::kJsonSchema,
                                         R"({"type":"string","format":"uri"})");
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  for (const char* uri : {"http://a@b:80/c//d?e?f/g#h/?", "file:///a", "a:/b", "a:b:c@d/e", "a:?b",
                          "a://@:", "a:%20", "http://a:b@c"})
    EXPECT_TRUE(acceptor->Accepts(absl::StrCat("\"", uri, "\""))) << uri;
  for (const char* uri : {"http://a@b@c:zz", "http://a@b@c", "http://a:zz", "http://a:1:2",
                          "a:", "a:b#c#d", "a:%2", "//a", "http://[::1]/"})
    EXPECT_FALSE(acceptor->Accepts(absl::StrCat("\"", uri, "\""))) << uri;
}

TEST(JsonSchemaSuite, AcceptsExactlyValidInstancesAndNamesUnsupportedKeywords) {
  std::ifstream in(testing::GoldenPath("guided/json_schema_suite.jsonl"));
  ASSERT_TRUE(in.good());
  int compiled = 0, refused = 0, cases = 0;
  for (std::string line; std::getline(in, line);) {
    const ordered_json group = ordered_json::parse(line);
    const std::string from = group["from"];
    SCOPED_TRACE(from + "\n" + group["schema"].dump());
    const auto acceptor =
        Acceptor::Create(request::GuidedParams::Kind::kJsonSchema, group["schema"].dump());
    if (!acceptor.ok()) {
      ++refused;
      const std::string message(acceptor.status().message());
      if (absl::StrContains(message, "nothing can satisfy")) {
        EXPECT_TRUE(group["valid"].empty());
        cases += static_cast<int>(group["invalid"].size());
      } else {
        EXPECT_TRUE(NamesKeyword(message, group["schema"])) << message;
      }
      continue;
    }
    ++compiled;
    for (const ordered_json& instance : group["valid"]) {
      ++cases;
      EXPECT_NE(AcceptsInstance(*acceptor, instance), NeverGenerated(from, instance))
          << "valid: " << instance;
    }
    for (const ordered_json& instance : group["invalid"]) {
      ++cases;
      EXPECT_FALSE(AcceptsInstance(*acceptor, instance)) << "invalid: " << instance;
    }
  }
  std::cout << compiled << " schemas compiled, " << refused << " refused, " << cases
            << " instances checked\n";
  EXPECT_GE(compiled, 200);
  EXPECT_GE(cases, 1000);
}

}  // namespace
}  // namespace tandem::guided
