#include "common/guided/json_schema/flat.h"

#include <algorithm>

namespace tandem::guided::json_schema {

void ObjectLayer::SchemasFor(const std::string& name, Conjunction& out) const {
  bool named = false;
  if (properties != nullptr) {
    if (const auto it = properties->find(name); it != properties->end()) {
      out.push_back(&*it);
      named = true;
    }
  }
  for (const Pattern& pattern : patterns) {
    if (!pattern.dfa->Matches(name)) continue;
    out.push_back(pattern.schema);
    named = true;
  }
  if (!named && additional != nullptr) out.push_back(additional);
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
    for (const Json& value : *values) size += 1 + value.size();
  }
  for (const ArrayLayer& layer : arrays) size += 1 + layer.prefix.size();
  for (const ObjectLayer& layer : objects) size += layer.patterns.size();
  return size;
}

void Flat::Narrow(const Flat& other) {
  types &= other.types;
  if (!values.has_value()) {
    values = other.values;
  } else if (other.values.has_value()) {
    const auto missing = [&](const Json& value) {
      return std::none_of(other.values->begin(), other.values->end(),
                          [&](const Json& candidate) { return Equal(value, candidate); });
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
  for (const std::string& name : other.required) {
    if (std::find(required.begin(), required.end(), name) == required.end()) {
      required.push_back(name);
    }
  }
  property_names.insert(property_names.end(), other.property_names.begin(),
                        other.property_names.end());
}

}  // namespace tandem::guided::json_schema
