// A JSON Schema document (draft 2020-12): parses it, resolves references, and names the place of a
// schema in it for error messages.
// Thread safety: const methods from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/guided/compile_budget.h"
#include "nlohmann/json.hpp"

namespace tandem::guided::json_schema {

// Keeps the order of members, because objects are generated in the schema's order.
using Json = nlohmann::ordered_json;
// Schemas (nodes of the document) that must all hold; sorted by address.
using Conjunction = std::vector<const Json*>;

// JSON equality: the order of members does not matter, and 1 equals 1.0.
bool Equal(const Json& a, const Json& b);
// What comparing `value` with another one takes, in steps.
size_t Weight(const Json& value);

class Document {
 public:
  // Errors: kInvalidArgument when the text is not JSON, nests too deeply, or is neither an object
  // nor a boolean, or when its members exceed the budget.
  static absl::StatusOr<std::unique_ptr<Document>> Parse(absl::string_view text,
                                                         CompileBudget& budget);

  const Json& root() const { return root_; }
  // The schema that a $ref names. Errors: kInvalidArgument when it is in another document, or does
  // not exist; or that the budget is exceeded.
  absl::StatusOr<const Json*> Resolve(const std::string& reference, CompileBudget& budget) const;
  // The text of an integer in `value` that has more than 64 bits, and that is not the one that a
  // double holds, so that `value` does not tell it. Empty when there is none.
  absl::string_view InexactInteger(const Json& value) const {
    const auto it = inexact_.find(&value);
    return it == inexact_.end() ? absl::string_view() : it->second;
  }
  // The place of a node, such as "#/properties/name", for messages.
  std::string PathOf(const Json& node) const;
  // kInvalidArgument: "json_schema: PATH: KEYWORD: WHAT".
  absl::Status Error(const Json& schema, absl::string_view keyword, absl::string_view what) const;

 private:
  Json root_;
  std::string id_;
  absl::flat_hash_map<std::string, const Json*> anchors_;
  // By the integer, and by each value around one. Bound: the document's values.
  absl::flat_hash_map<const Json*, std::string> inexact_;
};

}  // namespace tandem::guided::json_schema
