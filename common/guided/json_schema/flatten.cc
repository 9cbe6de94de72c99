#include "common/guided/json_schema/flatten.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::guided::json_schema {
namespace {

constexpr size_t kWorkMax = 200000;  // schemas visited
constexpr int kDisjointDepthMax = 4;

bool IsTrue(const Json& schema) { return schema.is_boolean() && schema.get<bool>(); }

}  // namespace

absl::StatusOr<std::vector<Flat>> Flattener::Flatten(const Conjunction& schemas) {
  std::vector<Flat> alternatives(1);
  for (const Json* schema : schemas) RETURN_IF_ERROR(Add(*schema, 0, alternatives));
  const auto impossible = [](const Flat& flat) {
    return flat.types == 0 || (flat.values.has_value() && flat.values->empty());
  };
  alternatives.erase(std::remove_if(alternatives.begin(), alternatives.end(), impossible),
                     alternatives.end());
  return alternatives;
}

absl::Status Flattener::Add(const Json& schema, int depth, std::vector<Flat>& alternatives) {
  if (IsTrue(schema)) return absl::OkStatus();
  if (schema.is_boolean()) {
    alternatives.clear();
    return absl::OkStatus();
  }
  if (!schema.is_object()) {
    return document_.Error(schema, schema.type_name(), "expected a schema: an object or a boolean");
  }
  if (depth > kReferenceDepthMax) {
    return document_.Error(schema, "$ref", "refers to itself without end, or nests too deep");
  }
  if (++work_ > kWorkMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("json_schema: combining it takes more than ", kWorkMax, " steps"));
  }
  ASSIGN_OR_RETURN(const Flat own, ReadKeywords(schema));
  for (Flat& flat : alternatives) {
    if (!budget_.Spend(flat.NarrowSteps(own))) return budget_.status();
    flat.Narrow(own);
  }
  if (const auto reference = schema.find("$ref"); reference != schema.end()) {
    if (!reference->is_string()) return document_.Error(schema, "$ref", "expected a string");
    ASSIGN_OR_RETURN(const Json* target, TargetOf(reference->get_ref<const std::string&>()));
    RETURN_IF_ERROR(Add(*target, depth + 1, alternatives));
  }
  return AddCombinations(schema, depth, alternatives);
}

absl::StatusOr<const Json*> Flattener::TargetOf(const std::string& reference) {
  if (!budget_.Spend(1 + reference.size() / 32)) return budget_.status();
  const Json*& target = targets_[reference];
  if (target == nullptr) {
    ASSIGN_OR_RETURN(target, document_.Resolve(reference, budget_));
  }
  return target;
}

absl::Status Flattener::AddCombinations(const Json& schema, int depth,
                                        std::vector<Flat>& alternatives) {
  for (const std::string keyword : {"allOf", "anyOf", "oneOf"}) {
    const auto found = schema.find(keyword);
    if (found == schema.end()) continue;
    if (!found->is_array() || found->empty()) {
      return document_.Error(schema, keyword, "expected an array of schemas");
    }
    if (keyword == "allOf") {
      for (const Json& branch : *found) RETURN_IF_ERROR(Add(branch, depth + 1, alternatives));
    } else {
      ASSIGN_OR_RETURN(alternatives, Branches(schema, keyword, depth, alternatives));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Flat>> Flattener::Branches(const Json& schema,
                                                      const std::string& keyword, int depth,
                                                      const std::vector<Flat>& alternatives) {
  std::vector<std::vector<Flat>> branches;
  for (const Json& branch : schema.at(keyword)) {
    for (const Flat& flat : alternatives) {
      if (!budget_.Spend(flat.Size())) return budget_.status();
    }
    std::vector<Flat> narrowed = alternatives;
    RETURN_IF_ERROR(Add(branch, depth + 1, narrowed));
    branches.push_back(std::move(narrowed));
  }
  std::vector<Flat> all;
  for (size_t i = 0; i < branches.size(); ++i) {
    for (size_t j = 0; keyword == "oneOf" && j < i; ++j) {
      for (const Flat& a : branches[i]) {
        for (const Flat& b : branches[j]) {
          ASSIGN_OR_RETURN(const bool disjoint, Disjoint(a, b, 0));
          if (disjoint) continue;
          return document_.Error(schema, "oneOf",
                                 absl::StrCat("alternatives ", j, " and ", i,
                                              " may both hold, which is not supported: "
                                              "use anyOf, or tell them apart by type, const or "
                                              "enum"));
        }
      }
    }
    for (Flat& flat : branches[i]) all.push_back(std::move(flat));
    // No later comparison reads a branch that was moved from: it uses the copies in `all`.
    branches[i].assign(all.end() - static_cast<int64_t>(branches[i].size()), all.end());
    if (all.size() > kAlternativesMax) {
      return absl::InvalidArgumentError(absl::StrCat("json_schema: ", document_.PathOf(schema),
                                                     ": ", keyword, ": more than ",
                                                     kAlternativesMax, " alternatives"));
    }
  }
  return all;
}

// True only when no value satisfies both. Schemas that cannot be shown to be disjoint count as
// overlapping.
absl::StatusOr<bool> Flattener::Disjoint(const Flat& a, const Flat& b, int depth) {
  if (!budget_.Spend(1)) return budget_.status();
  const uint8_t types = a.types & b.types;
  if (types == 0) return true;
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    if (!one->values.has_value()) continue;
    bool shared = false;
    for (const Json* value : *one->values) {
      ASSIGN_OR_RETURN(const bool in_one, Validates(*one, *value));
      if (!in_one) continue;
      ASSIGN_OR_RETURN(const bool in_other, Validates(*other, *value));
      shared = shared || in_other;
    }
    return !shared;
  }
  if ((types & ~(kNumber | kString | kObject)) != 0) return false;
  if ((types & kNumber) != 0) {
    NumberRange range = a.numbers;
    range.Narrow(b.numbers);
    ASSIGN_OR_RETURN(const CharDfa dfa, NumberDfa(range, (types & kFraction) == 0, budget_));
    if (!dfa.Empty()) return false;
  }
  if ((types & kString) != 0) {
    ASSIGN_OR_RETURN(CharDfa dfa,
                     LengthDfa(std::max(a.length.min, b.length.min), kUnbounded, budget_));
    for (const Flat* flat : {&a, &b}) {
      ASSIGN_OR_RETURN(const CharDfa length,
                       LengthDfa(flat->length.min, flat->length.max, budget_));
      ASSIGN_OR_RETURN(dfa, Intersect(dfa, length, budget_));
      for (const SharedDfa& text : flat->texts) {
        ASSIGN_OR_RETURN(dfa, Intersect(dfa, *text, budget_));
      }
    }
    if (!dfa.Empty()) return false;
  }
  return (types & kObject) == 0 ? absl::StatusOr<bool>(true) : ObjectsDisjoint(a, b, depth);
}

// Objects are disjoint when one of the schemas requires a property that cannot satisfy both.
absl::StatusOr<bool> Flattener::ObjectsDisjoint(const Flat& a, const Flat& b, int depth) {
  if (depth >= kDisjointDepthMax) return false;
  if (!budget_.Spend(a.required.size() + b.required.size())) return budget_.status();
  std::vector<absl::string_view> names = a.required;
  names.insert(names.end(), b.required.begin(), b.required.end());
  for (const absl::string_view name : names) {
    ASSIGN_OR_RETURN(const Conjunction schemas_a, a.SchemasFor(name, budget_));
    ASSIGN_OR_RETURN(const Conjunction schemas_b, b.SchemasFor(name, budget_));
    ASSIGN_OR_RETURN(const std::vector<Flat> flats_a, Flatten(schemas_a));
    ASSIGN_OR_RETURN(const std::vector<Flat> flats_b, Flatten(schemas_b));
    bool disjoint = true;
    for (const Flat& x : flats_a) {
      for (const Flat& y : flats_b) {
        ASSIGN_OR_RETURN(const bool apart, Disjoint(x, y, depth + 1));
        disjoint = disjoint && apart;
      }
    }
    if (disjoint) return true;
  }
  return false;
}

absl::StatusOr<bool> Flattener::Validates(const Conjunction& schemas, const Json& value) {
  ASSIGN_OR_RETURN(const std::vector<Flat> alternatives, Flatten(schemas));
  for (const Flat& flat : alternatives) {
    ASSIGN_OR_RETURN(const bool valid, Validates(flat, value));
    if (valid) return true;
  }
  return false;
}

absl::StatusOr<bool> Flattener::Validates(const Flat& flat, const Json& value) {
  uint8_t type = value.is_null()      ? kNull
                 : value.is_boolean() ? kBoolean
                 : value.is_object()  ? kObject
                 : value.is_array()   ? kArray
                 : value.is_string()  ? kString
                                      : kFraction;
  Decimal number;
  if (value.is_number()) {
    number = AnyDecimal(value);
    if (number.fraction.empty()) type = kInteger;
  }
  if ((flat.types & type) == 0) return false;
  constexpr size_t kDigitsPerStep = 32;
  const size_t bytes = value.is_string()
                           ? value.get_ref<const std::string&>().size()
                           : (number.whole.size() + number.fraction.size()) / kDigitsPerStep;
  const size_t listed = flat.values.has_value() ? flat.values->size() : 0;
  if (!budget_.Spend(flat.Size() + value.size() + bytes) ||
      (listed > 0 && !budget_.Spend(listed * Weight(value)))) {
    return budget_.status();
  }
  if (flat.values.has_value() &&
      std::none_of(flat.values->begin(), flat.values->end(),
                   [&](const Json* candidate) { return Equal(*candidate, value); })) {
    return false;
  }
  if (value.is_number()) return flat.numbers.Admits(number);
  if (value.is_string()) return ValidatesString(flat, value.get_ref<const std::string&>());
  if (value.is_array()) return ValidatesArray(flat, value);
  if (value.is_object()) return ValidatesObject(flat, value);
  return true;
}

absl::StatusOr<bool> Flattener::ValidatesString(const Flat& flat, const std::string& text) {
  const auto length =
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  if (!flat.length.Contains(length)) return false;
  for (const SharedDfa& dfa : flat.texts) {
    ASSIGN_OR_RETURN(const bool matches, dfa->Matches(text, budget_));
    if (!matches) return false;
  }
  return true;
}

absl::StatusOr<bool> Flattener::ValidatesArray(const Flat& flat, const Json& value) {
  if (!flat.items.Contains(static_cast<int64_t>(value.size()))) return false;
  for (const ArrayLayer& layer : flat.arrays) {
    for (size_t i = 0; i < value.size(); ++i) {
      const Json* schema = layer.SchemaFor(i);
      if (schema == nullptr) continue;
      ASSIGN_OR_RETURN(const bool valid, Validates(Conjunction{schema}, value[i]));
      if (!valid) return false;
    }
  }
  return true;
}

absl::StatusOr<bool> Flattener::ValidatesObject(const Flat& flat, const Json& value) {
  if (!flat.num_properties.Contains(static_cast<int64_t>(value.size()))) return false;
  // Each name is looked for among the members.
  if (!budget_.Spend(flat.required.size() * (1 + value.size() / 4))) return budget_.status();
  for (const absl::string_view name : flat.required) {
    if (!value.contains(name)) return false;
  }
  for (const auto& [name, member] : value.items()) {
    ASSIGN_OR_RETURN(const Conjunction schemas, flat.SchemasFor(name, budget_));
    ASSIGN_OR_RETURN(const bool valid, Validates(schemas, member));
    if (!valid) return false;
    ASSIGN_OR_RETURN(const bool named, Validates(flat.property_names, Json(name)));
    if (!named) return false;
  }
  return true;
}

}  // namespace tandem::guided::json_schema
