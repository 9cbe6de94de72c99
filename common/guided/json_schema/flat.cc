#include "common/guided/json_schema/flat.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "common/base/status_macros.h"

namespace tandem::guided::json_schema {
namespace {

// A name is compared with so many others in about the time of a step.
constexpr size_t kPerStep = 4;

}  // namespace

absl::Status ObjectLayer::SchemasFor(absl::string_view name, CompileBudget& budget,
                                     Conjunction& out) const {
  const size_t compared = properties == nullptr ? 0 : properties->size();
  if (!budget.Spend(1 + compared / kPerStep)) return budget.status();
  bool named = false;
  if (properties != nullptr) {
    if (const auto it = properties->find(name); it != properties->end()) {
      out.push_back(&*it);
      named = true;
    }
  }
  for (const Pattern& pattern : patterns) {
    ASSIGN_OR_RETURN(const bool matches, pattern.dfa->Matches(name, budget));
    if (!matches) continue;
    out.push_back(pattern.schema);
    named = true;
  }
  if (!named && additional != nullptr) out.push_back(additional);
  return absl::OkStatus();
}

void CountRange::Narrow(const CountRange& other) {
  min = std::max(min, other.min);
  if (max == kUnbounded) {
    max = other.max;
  } else if (other.max != kUnbounded) {
    max = std::min(max, other.max);
  }
}

size_t Flat::Size() const {
  size_t size = 1 + numbers.bounds.size() + numbers.multiples.size() + texts.size() +
                objects.size() + required.size() + property_names.size();
  if (values.has_value()) {
    size += values->size();
  }
  for (const ArrayLayer& layer : arrays) size += 1 + layer.prefix.size();
  for (const ObjectLayer& layer : objects) size += layer.patterns.size();
  return size;
}

size_t Flat::NarrowSteps(const Flat& other) const {
  size_t steps = Size() + other.Size();
  if (!values.has_value() || !other.values.has_value()) return steps;
  size_t weight = 0;
  for (const Json* value : *other.values) weight += Weight(*value);
  return steps + values->size() * weight;
}

absl::StatusOr<Conjunction> Flat::SchemasFor(absl::string_view name, CompileBudget& budget) const {
  if (!budget.Spend(1)) return budget.status();
  Conjunction schemas;
  for (const ObjectLayer& layer : objects) {
    RETURN_IF_ERROR(layer.SchemasFor(name, budget, schemas));
  }
  return schemas;
}

void Flat::Narrow(const Flat& other) {
  types &= other.types;
  if (!values.has_value()) {
    values = other.values;
  } else if (other.values.has_value()) {
    const auto missing = [&](const Json* value) {
      return std::none_of(other.values->begin(), other.values->end(),
                          [&](const Json* candidate) { return Equal(*value, *candidate); });
    };
    values->erase(std::remove_if(values->begin(), values->end(), missing), values->end());
  }
  numbers.Narrow(other.numbers);
  length.Narrow(other.length);
  texts.insert(texts.end(), other.texts.begin(), other.texts.end());
  items.Narrow(other.items);
  arrays.insert(arrays.end(), other.arrays.begin(), other.arrays.end());
  num_properties.Narrow(other.num_properties);
  objects.insert(objects.end(), other.objects.begin(), other.objects.end());
  if (required.empty()) {
    required = other.required;
  } else if (!other.required.empty()) {
    absl::flat_hash_set<absl::string_view> known(required.begin(), required.end());
    for (const absl::string_view name : other.required) {
      if (known.insert(name).second) required.push_back(name);
    }
  }
  property_names.insert(property_names.end(), other.property_names.begin(),
                        other.property_names.end());
}

}  // namespace tandem::guided::json_schema
