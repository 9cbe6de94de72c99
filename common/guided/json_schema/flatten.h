// From schemas to their alternatives: references followed, combinations multiplied out.
// Also the validator that decides which values of an `enum` count.
// Thread safety: by one thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/guided/json_schema/document.h"
#include "common/guided/json_schema/flat.h"

namespace tandem::guided::json_schema {

inline constexpr size_t kAlternativesMax = 256;
inline constexpr int kReferenceDepthMax = 64;

class Flattener {
 public:
  // `document` outlives it.
  explicit Flattener(const Document& document) : document_(document) {}

  // A value satisfies all of `schemas` if and only if it satisfies one of these.
  // Errors: kInvalidArgument naming the keyword that is unknown, unsupported or malformed, or
  // that leads to too many alternatives.
  absl::StatusOr<std::vector<Flat>> Flatten(const Conjunction& schemas);
  absl::StatusOr<bool> Validates(const Conjunction& schemas, const Json& value);
  absl::StatusOr<bool> Validates(const Flat& flat, const Json& value);
  // Whether the strings a pattern is found in; kept for the next use.
  absl::StatusOr<SharedDfa> PatternDfa(const std::string& pattern);

  const Document& document() const { return document_; }

 private:
  absl::Status Add(const Json& schema, int depth, std::vector<Flat>& alternatives);
  absl::Status AddCombinations(const Json& schema, int depth, std::vector<Flat>& alternatives);
  absl::StatusOr<std::vector<Flat>> Branches(const Json& schema, const std::string& keyword,
                                             int depth, const std::vector<Flat>& alternatives);
  absl::StatusOr<bool> Disjoint(const Flat& a, const Flat& b, int depth);
  absl::StatusOr<bool> ObjectsDisjoint(const Flat& a, const Flat& b, int depth);

  // keywords.cc: what the keywords of one schema itself demand.
  absl::StatusOr<Flat> Own(const Json& schema);
  absl::Status ReadKeyword(const Json& schema, const std::string& key, const Json& value,
                           Flat& flat);
  absl::StatusOr<bool> ReadTypeOrValues(const Json& schema, const std::string& key,
                                        const Json& value, Flat& flat);
  absl::StatusOr<bool> ReadNumberKeyword(const Json& schema, const std::string& key,
                                         const Json& value, Flat& flat);
  absl::StatusOr<bool> ReadStringKeyword(const Json& schema, const std::string& key,
                                         const Json& value, Flat& flat);
  absl::StatusOr<bool> ReadArrayKeyword(const Json& schema, const std::string& key,
                                        const Json& value, Flat& flat);
  absl::StatusOr<bool> ReadObjectKeyword(const Json& schema, const std::string& key,
                                         const Json& value, Flat& flat);
  absl::Status CheckUnevaluated(const Json& schema, const std::string& key, const Json& value,
                                Flat& flat);

  absl::StatusOr<bool> ValidatesArray(const Flat& flat, const Json& value);
  absl::StatusOr<bool> ValidatesObject(const Flat& flat, const Json& value);

  const Document& document_;
  std::map<std::string, SharedDfa> dfas_;  // by pattern; formats have a prefix no pattern has
  size_t work_ = 0;
};

}  // namespace tandem::guided::json_schema
