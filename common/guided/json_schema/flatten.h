// Turns schemas into their alternatives: follows references, and multiplies out combinations
// (anyOf, allOf, oneOf). Also validates values, to decide which values of an `enum` are allowed.
// Thread safety: none; one thread uses a Flattener.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/guided/json_schema/document.h"
#include "common/guided/json_schema/flat.h"

namespace tandem::guided::json_schema {

inline constexpr size_t kAlternativesMax = 256;
inline constexpr int kReferenceDepthMax = 64;
inline constexpr size_t kPropertiesMax = 2000;
inline constexpr size_t kPatternsMax = 6;  // distinct patternProperties of one object

class Flattener {
 public:
  // `document` and `budget` outlive the Flattener.
  Flattener(const Document& document, CompileBudget& budget)
      : document_(document), budget_(budget) {}

  // The alternatives of `schemas`: a value satisfies all schemas exactly when it satisfies one of
  // the alternatives. Errors: kInvalidArgument names the keyword that is unknown, unsupported or
  // malformed, or that leads to more than kAlternativesMax alternatives.
  absl::StatusOr<std::vector<Flat>> Flatten(const Conjunction& schemas);
  absl::StatusOr<bool> Validates(const Conjunction& schemas, const Json& value);
  absl::StatusOr<bool> Validates(const Flat& flat, const Json& value);
  // The strings that contain a match of `pattern`; cached for the next use.
  absl::StatusOr<SharedDfa> PatternDfa(absl::string_view pattern);

  const Document& document() const { return document_; }

 private:
  absl::Status Add(const Json& schema, int depth, std::vector<Flat>& alternatives);
  // The schema that a $ref names: looked for once. REQUIRES: the text is the document's.
  absl::StatusOr<const Json*> TargetOf(const std::string& reference);
  absl::Status AddCombinations(const Json& schema, int depth, std::vector<Flat>& alternatives);
  absl::StatusOr<std::vector<Flat>> Branches(const Json& schema, const std::string& keyword,
                                             int depth, const std::vector<Flat>& alternatives);
  absl::StatusOr<bool> Disjoint(const Flat& a, const Flat& b, int depth);
  absl::StatusOr<bool> ObjectsDisjoint(const Flat& a, const Flat& b, int depth);

  // What the keywords of one schema itself demand (keywords.cc).
  absl::StatusOr<Flat> ReadKeywords(const Json& schema);
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

  absl::StatusOr<bool> ValidatesString(const Flat& flat, const std::string& text);
  absl::StatusOr<bool> ValidatesArray(const Flat& flat, const Json& value);
  absl::StatusOr<bool> ValidatesObject(const Flat& flat, const Json& value);

  const Document& document_;
  CompileBudget& budget_;
  // By pattern; a format has a prefix that no pattern has.
  absl::flat_hash_map<std::string, SharedDfa> dfas_;
  // By the text of a $ref. Bound: the document's.
  absl::flat_hash_map<absl::string_view, const Json*> targets_;
  size_t work_ = 0;
};

}  // namespace tandem::guided::json_schema
