// A flat schema: what one alternative demands of a value, type by type, without references and
// combinations. Several schemas that must all hold are merged into one. Names, patterns and values
// are those of the document, which outlives it, so a copy takes a word or two for each.
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/guided/char_dfa.h"
#include "common/guided/json_schema/document.h"
#include "common/guided/json_schema/number_range.h"

namespace tandem::guided::json_schema {

enum Types : uint8_t {
  kNull = 1,
  kBoolean = 2,
  kObject = 4,
  kArray = 8,
  kString = 16,
  kInteger = 32,
  kFraction = 64,  // numbers that are not integers
  kNumber = kInteger | kFraction,
  kAnyType = 127,
};

// Shared among all uses of one pattern or format.
using SharedDfa = std::shared_ptr<const CharDfa>;

// One schema's properties, patternProperties and additionalProperties. These three decide together
// which schemas a property must satisfy, so each schema keeps a layer of its own.
struct ObjectLayer {
  struct Pattern {
    absl::string_view text;
    SharedDfa dfa;
    const Json* schema = nullptr;
  };
  const Json* properties = nullptr;  // may be null
  std::vector<Pattern> patterns;
  const Json* additional = nullptr;  // null: anything

  // Appends to `out` the schemas that the property `name` must satisfy. Errors: kInvalidArgument
  // when the budget is exceeded.
  absl::Status SchemasFor(absl::string_view name, CompileBudget& budget, Conjunction& out) const;
};

// One schema's prefixItems and items.
struct ArrayLayer {
  std::vector<const Json*> prefix;
  const Json* items = nullptr;  // null: anything

  const Json* SchemaFor(size_t index) const {
    return index < prefix.size() ? prefix[index] : items;
  }
};

struct CountRange {
  int64_t min = 0, max = kUnbounded;
  void Narrow(const CountRange& other);
  bool Contains(int64_t count) const { return count >= min && (max == kUnbounded || count <= max); }
};

struct Flat {
  uint8_t types = kAnyType;
  std::optional<std::vector<const Json*>> values;  // enum and const
  NumberRange numbers;
  CountRange length;             // of strings, in code points
  std::vector<SharedDfa> texts;  // patterns and formats of strings
  CountRange items;
  std::vector<ArrayLayer> arrays;
  CountRange num_properties;
  std::vector<ObjectLayer> objects;
  std::vector<absl::string_view> required;  // no duplicates
  std::vector<const Json*> property_names;

  // What copying this schema costs, in values, names and automata.
  size_t Size() const;
  // Narrows this schema to the values that satisfy both. NarrowSteps: what that takes.
  void Narrow(const Flat& other);
  size_t NarrowSteps(const Flat& other) const;
  // The schemas that the property `name` must satisfy. Errors: as ObjectLayer::SchemasFor.
  absl::StatusOr<Conjunction> SchemasFor(absl::string_view name, CompileBudget& budget) const;
};

}  // namespace tandem::guided::json_schema
