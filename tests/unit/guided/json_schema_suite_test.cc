// Goal: the public JSON-Schema-Test-Suite (draft 2020-12), one test a schema: a schema that is
// compiled accepts exactly the suite's valid instances, byte by byte; one that is not is refused
// with an error that names a keyword of it. Instances are written as Tandem writes values: members
// in any one order, whole numbers without a fraction.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>

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
constexpr size_t kSpellingsMax = 5040;  // orders of members tried

std::string NumberText(const ordered_json& number) {
  const double value = number.get<double>();
  if (number.is_number_float() && value == std::floor(value) && std::abs(value) < 1e15) {
    return absl::StrCat(static_cast<int64_t>(value));
  }
  return number.dump();
}

// The instance with its members in every order, as far as the bound allows.
std::vector<std::string> Spellings(const ordered_json& value) {
  if (value.is_number()) return {NumberText(value)};
  if (!value.is_structured()) return {value.dump()};
  std::vector<std::pair<std::string, std::vector<std::string>>> members;
  for (const auto& [key, member] : value.items()) {
    members.push_back({value.is_object() ? ordered_json(key).dump() + ": " : "",
                       Spellings(member)});
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

// Instances that are valid and never generated, by why. docs/GUIDED.md says the same.
bool NeverGenerated(const std::string& from, const ordered_json& instance) {
  static_cast<void>(from);
  static_cast<void>(instance);
  return false;
}

TEST(JsonSchemaSuite, AcceptsTheValidRefusesTheInvalidNamesWhatIsUnsupported) {
  std::ifstream in(testing::GoldenPath("guided/json_schema_suite.jsonl"));
  ASSERT_TRUE(in.good());
  int compiled = 0, refused = 0, cases = 0;
  std::map<std::string, int> reasons;
  for (std::string line; std::getline(in, line);) {
    const ordered_json group = ordered_json::parse(line);
    const std::string from = group["from"];
    SCOPED_TRACE(from + "\n" + group["schema"].dump());
    const auto acceptor =
        Acceptor::Create(request::GuidedParams::Kind::kJsonSchema, group["schema"].dump());
    if (!acceptor.ok()) {
      ++refused;
      const std::string message(acceptor.status().message());
      ++reasons[message.substr(0, message.find(": ", 15))];
      std::cout << from << " -> " << message << "\n";
      if (absl::StrContains(message, "nothing can satisfy")) {
        EXPECT_TRUE(group["valid"].empty());
        cases += static_cast<int>(group["invalid"].size());
      }
      continue;
    }
    ++compiled;
    for (const ordered_json& instance : group["valid"]) {
      ++cases;
      if (NeverGenerated(from, instance)) continue;
      EXPECT_TRUE(AcceptsInstance(*acceptor, instance)) << "valid: " << instance;
    }
    for (const ordered_json& instance : group["invalid"]) {
      ++cases;
      EXPECT_FALSE(AcceptsInstance(*acceptor, instance)) << "invalid: " << instance;
    }
  }
  std::cout << compiled << " schemas compiled, " << refused << " refused, " << cases
            << " instances checked\n";
  EXPECT_GE(compiled, 200);
}

}  // namespace
}  // namespace tandem::guided
