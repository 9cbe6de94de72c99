// Implements Flattener::ReadKeywords (common/guided/json_schema/flatten.h): reads the keywords of
// one schema, and checks the form of each. It rejects, by name, a keyword that is neither listed
// here nor an annotation.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/guided/json_schema/flatten.h"
#include "common/guided/json_schema/formats.h"

namespace tandem::guided::json_schema {
namespace {

constexpr int64_t kCountMax = 30000;
// Before a format's name in dfas_. No pattern has it, because a pattern is UTF-8.
constexpr absl::string_view kFormatKey = "\xFF";
// So many bytes of a pattern are hashed and compared in about the time of a step.
constexpr size_t kTextPerStep = 32;

// Annotations: they do not restrict values.
constexpr std::array<absl::string_view, 17> kAnnotations = {
    "title",         "description",   "default",     "examples",        "$comment",
    "$schema",       "$defs",         "definitions", "deprecated",      "readOnly",
    "writeOnly",     "$anchor",       "$vocabulary", "contentEncoding", "contentMediaType",
    "contentSchema", "$dynamicAnchor"};
// Annotations of OpenAPI and of editors, and what begins the names of OpenAPI's extensions.
constexpr std::array<absl::string_view, 7> kForeignAnnotations = {
    "discriminator",       "example",   "externalDocs",    "xml",
    "markdownDescription", "enumNames", "propertyOrdering"};
constexpr absl::string_view kExtension = "x-";
// Keywords that Flattener::Add handles, or that are read together with another keyword.
constexpr std::array<absl::string_view, 6> kElsewhere = {
    "$ref", "allOf", "anyOf", "oneOf", "patternProperties", "additionalProperties"};

template <typename List>
bool Contains(const List& list, absl::string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

bool IsAnnotation(absl::string_view key) {
  return Contains(kAnnotations, key) || Contains(kForeignAnnotations, key) ||
         absl::StartsWith(key, kExtension);
}

uint8_t TypeNamed(const std::string& name) {
  if (name == "null") return kNull;
  if (name == "boolean") return kBoolean;
  if (name == "object") return kObject;
  if (name == "array") return kArray;
  if (name == "string") return kString;
  if (name == "integer") return kInteger;
  if (name == "number") return kNumber;
  return 0;
}

// A whole number from 0 to kCountMax; 2.0 counts as whole.
absl::StatusOr<int64_t> Count(const Document& document, const Json& schema, const std::string& key,
                              const Json& value) {
  if (value.is_number()) {
    const auto number = value.get<double>();
    if (number >= 0 && number <= kCountMax && std::floor(number) == number) {
      return static_cast<int64_t>(number);
    }
    if (number > kCountMax && std::floor(number) == number) {
      return absl::InvalidArgumentError(absl::StrCat("json_schema: ", document.PathOf(schema), ": ",
                                                     key, ": ", value.dump(), ", supported up to ",
                                                     kCountMax));
    }
  }
  return document.Error(schema, key, absl::StrCat("expected a whole number from 0 to ", kCountMax));
}

}  // namespace

absl::StatusOr<Flat> Flattener::ReadKeywords(const Json& schema) {
  Flat flat;
  for (const auto& [key, value] : schema.items()) {
    if (IsAnnotation(key) || Contains(kElsewhere, key)) continue;
    if (!budget_.Spend(value.is_array() ? value.size() : 1)) return budget_.status();
    RETURN_IF_ERROR(ReadKeyword(schema, key, value, flat));
  }
  // The three keywords that decide together which schemas a property must satisfy.
  ObjectLayer layer;
  if (const auto it = schema.find("properties"); it != schema.end()) layer.properties = &*it;
  if (const auto it = schema.find("additionalProperties"); it != schema.end()) {
    layer.additional = &*it;
  }
  // `true` demands nothing, and so leaves what additionalProperties demands.
  if (const auto it = schema.find("unevaluatedProperties"); it != schema.end() && *it != true) {
    layer.additional = &*it;
  }
  if (const auto it = schema.find("patternProperties"); it != schema.end()) {
    if (!it->is_object()) return document_.Error(schema, "patternProperties", "expected an object");
    if (it->size() > kPatternsMax) {
      return absl::InvalidArgumentError(absl::StrCat("json_schema: patternProperties: ", it->size(),
                                                     " patterns on one object, expected at most ",
                                                     kPatternsMax));
    }
    for (const auto& [pattern, value] : it->items()) {
      auto dfa = PatternDfa(pattern);
      if (!dfa.ok()) return document_.Error(schema, "patternProperties", dfa.status().message());
      layer.patterns.push_back({pattern, *dfa, &value});
    }
  }
  if (layer.properties != nullptr || layer.additional != nullptr || !layer.patterns.empty()) {
    flat.objects.push_back(std::move(layer));
  }
  return flat;
}

absl::Status Flattener::ReadKeyword(const Json& schema, const std::string& key, const Json& value,
                                    Flat& flat) {
  if (key == "$id" || key == "id") {
    if (&schema == &document_.root()) return absl::OkStatus();
    return document_.Error(schema, key, "is supported at the root only");
  }
  if (key == "unevaluatedProperties" || key == "unevaluatedItems") {
    return CheckUnevaluated(schema, key, value, flat);
  }
  for (const auto read :
       {&Flattener::ReadTypeOrValues, &Flattener::ReadNumberKeyword, &Flattener::ReadStringKeyword,
        &Flattener::ReadArrayKeyword, &Flattener::ReadObjectKeyword}) {
    ASSIGN_OR_RETURN(const bool known, (this->*read)(schema, key, value, flat));
    if (known) return absl::OkStatus();
  }
  return document_.Error(schema, key, "this keyword is not supported");
}

// Where no other schema applies to the same value, "unevaluated" means "additional".
absl::Status Flattener::CheckUnevaluated(const Json& schema, const std::string& key,
                                         const Json& value, Flat& flat) {
  if (value.is_boolean() && value.get<bool>()) return absl::OkStatus();
  for (const char* beside : {"$ref", "allOf", "anyOf", "oneOf"}) {
    if (schema.contains(beside)) {
      return document_.Error(schema, key, absl::StrCat("is not supported beside ", beside));
    }
  }
  const char* nearer = key == "unevaluatedItems" ? "items" : "additionalProperties";
  if (schema.contains(nearer)) {
    return document_.Error(schema, key, absl::StrCat("is not supported beside ", nearer));
  }
  if (key == "unevaluatedItems") {
    ArrayLayer layer{.items = &value};
    if (const auto prefix = schema.find("prefixItems");
        prefix != schema.end() && prefix->is_array()) {
      for (const Json& item : *prefix) layer.prefix.push_back(&item);
    }
    flat.arrays.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Flattener::ReadTypeOrValues(const Json& schema, const std::string& key,
                                                 const Json& value, Flat& flat) {
  if (key == "type") {
    uint8_t types = 0;
    const size_t count = value.is_array() ? value.size() : 1;
    for (size_t i = 0; i < count; ++i) {
      const Json& name = value.is_array() ? value[i] : value;
      const uint8_t type = name.is_string() ? TypeNamed(name.get_ref<const std::string&>()) : 0;
      if (type == 0)
        return document_.Error(schema, key, absl::StrCat("unknown type ", Shown(name.dump())));
      types |= type;
    }
    flat.types &= types;
    return true;
  }
  if (key != "enum" && key != "const") return false;
  if (key == "enum" && !value.is_array()) return document_.Error(schema, key, "expected an array");
  if (const absl::string_view text = document_.InexactInteger(value); !text.empty()) {
    return document_.Error(schema, key,
                           absl::StrCat(Shown(text),
                                        ": expected an integer of at most 64 bits, "
                                        "or one that a double holds exactly"));
  }
  Flat own;
  own.values.emplace();
  if (key == "const") {
    own.values->push_back(&value);
  } else {
    for (const Json& item : value) own.values->push_back(&item);
  }
  if (!budget_.Spend(flat.NarrowSteps(own))) return budget_.status();
  flat.Narrow(own);
  return true;
}

absl::StatusOr<bool> Flattener::ReadNumberKeyword(const Json& schema, const std::string& key,
                                                  const Json& value, Flat& flat) {
  const bool minimum = key == "minimum" || key == "exclusiveMinimum";
  const bool maximum = key == "maximum" || key == "exclusiveMaximum";
  if (!minimum && !maximum && key != "multipleOf") return false;
  if (!value.is_number()) return document_.Error(schema, key, "expected a number");
  const absl::string_view exact = document_.InexactInteger(value);
  const auto decimal = exact.empty() ? ToDecimal(value) : ParseDecimal(exact);
  if (!decimal.ok()) return document_.Error(schema, key, decimal.status().message());
  if (key != "multipleOf") {
    flat.numbers.bounds.push_back(
        {*decimal, minimum, key == "exclusiveMinimum" || key == "exclusiveMaximum"});
    return true;
  }
  const auto divisor = value.get<double>();
  if (divisor < 1 || divisor > kMultipleOfMax || !decimal->fraction.empty()) {
    return document_.Error(schema, key,
                           absl::StrCat(value.dump(), " is not supported, whole numbers from 1 to ",
                                        kMultipleOfMax, " are"));
  }
  flat.numbers.multiples.push_back(static_cast<int64_t>(divisor));
  return true;
}

absl::StatusOr<SharedDfa> Flattener::PatternDfa(absl::string_view pattern) {
  if (!budget_.Spend(1 + pattern.size() / kTextPerStep)) return budget_.status();
  SharedDfa& dfa = dfas_[pattern];
  if (dfa != nullptr) return dfa;
  ASSIGN_OR_RETURN(const RegexNode regex, ParseRegex(pattern, budget_));
  ASSIGN_OR_RETURN(CharDfa compiled, CompileRegex(regex, RegexMode::kContains, budget_));
  dfa = std::make_shared<const CharDfa>(std::move(compiled));
  return dfa;
}

absl::StatusOr<bool> Flattener::ReadStringKeyword(const Json& schema, const std::string& key,
                                                  const Json& value, Flat& flat) {
  if (key == "minLength" || key == "maxLength") {
    ASSIGN_OR_RETURN(const int64_t count, Count(document_, schema, key, value));
    flat.length.Narrow(key == "minLength" ? CountRange{count, kUnbounded} : CountRange{0, count});
    return true;
  }
  if (key != "pattern" && key != "format") return false;
  if (!value.is_string()) return document_.Error(schema, key, "expected a string");
  const std::string& text = value.get_ref<const std::string&>();
  if (key == "pattern") {
    auto dfa = PatternDfa(text);
    if (!dfa.ok()) return document_.Error(schema, key, dfa.status().message());
    flat.texts.push_back(*dfa);
    return true;
  }
  SharedDfa& dfa = dfas_[absl::StrCat(kFormatKey, text)];
  if (dfa == nullptr) {
    auto pattern = FormatPattern(text);
    if (!pattern.ok()) return document_.Error(schema, key, pattern.status().message());
    ASSIGN_OR_RETURN(const RegexNode regex, ParseRegex(*pattern, budget_));
    ASSIGN_OR_RETURN(CharDfa compiled, CompileRegex(regex, RegexMode::kWhole, budget_));
    dfa = std::make_shared<const CharDfa>(std::move(compiled));
  }
  flat.texts.push_back(dfa);
  return true;
}

absl::StatusOr<bool> Flattener::ReadArrayKeyword(const Json& schema, const std::string& key,
                                                 const Json& value, Flat& flat) {
  if (key == "minItems" || key == "maxItems") {
    ASSIGN_OR_RETURN(const int64_t count, Count(document_, schema, key, value));
    flat.items.Narrow(key == "minItems" ? CountRange{count, kUnbounded} : CountRange{0, count});
    return true;
  }
  if (key == "uniqueItems") {
    if (value.is_boolean() && !value.get<bool>()) return true;
    return document_.Error(schema, key, "this keyword is not supported");
  }
  if (key != "items" && key != "prefixItems") return false;
  if (key == "prefixItems" && !value.is_array()) {
    return document_.Error(schema, key, "expected an array of schemas");
  }
  if (key == "items" && value.is_array()) {
    return document_.Error(schema, key, "expected a schema; for a list of them use prefixItems");
  }
  // Both keywords form one layer. It is read at the first of them.
  const auto prefix = schema.find("prefixItems");
  if (key == "items" && prefix != schema.end()) return true;
  ArrayLayer layer;
  if (prefix != schema.end()) {
    for (const Json& item : *prefix) layer.prefix.push_back(&item);
  }
  if (const auto items = schema.find("items"); items != schema.end()) layer.items = &*items;
  flat.arrays.push_back(std::move(layer));
  return true;
}

absl::StatusOr<bool> Flattener::ReadObjectKeyword(const Json& schema, const std::string& key,
                                                  const Json& value, Flat& flat) {
  if (key == "minProperties" || key == "maxProperties") {
    ASSIGN_OR_RETURN(const int64_t count, Count(document_, schema, key, value));
    flat.num_properties.Narrow(key == "minProperties" ? CountRange{count, kUnbounded}
                                                      : CountRange{0, count});
    return true;
  }
  if (key == "properties") {
    if (!value.is_object()) return document_.Error(schema, key, "expected an object of schemas");
    return true;
  }
  if (key == "propertyNames") {
    flat.property_names.push_back(&value);
    return true;
  }
  if (key != "required") return false;
  if (!value.is_array()) return document_.Error(schema, key, "expected an array of names");
  absl::flat_hash_set<absl::string_view> known;
  for (const Json& name : value) {
    if (!name.is_string()) return document_.Error(schema, key, "expected an array of names");
    const absl::string_view text = name.get_ref<const std::string&>();
    if (known.insert(text).second) flat.required.push_back(text);
    if (known.size() <= kPropertiesMax) continue;
    return document_.Error(schema, key,
                           absl::StrCat("more than ", kPropertiesMax, " different names"));
  }
  return true;
}

}  // namespace tandem::guided::json_schema
