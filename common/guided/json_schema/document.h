// A JSON Schema document (draft 2020-12): parsing, references, and where in it something stands.
// Thread safety: const methods from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tandem::guided::json_schema {

// Keeps the order of members: objects are generated in the schema's order.
using Json = nlohmann::ordered_json;
// A schema: a node of the document. Several mean all of them at once; sorted by address.
using Conjunction = std::vector<const Json*>;

// Order of members does not matter; 1 equals 1.0.
bool Equal(const Json& a, const Json& b);

class Document {
 public:
  // Errors: kInvalidArgument for text that is not JSON, nests too deep, or is neither an object
  // nor a boolean.
  static absl::StatusOr<std::unique_ptr<Document>> Parse(absl::string_view text);

  const Json& root() const { return root_; }
  // The schema a $ref names. kInvalidArgument for what lies in another document or nowhere.
  absl::StatusOr<const Json*> Resolve(const std::string& reference) const;
  // "#/properties/name": for messages.
  std::string PathOf(const Json& node) const;
  absl::Status Error(const Json& schema, absl::string_view keyword, absl::string_view what) const;

 private:
  Json root_;
  std::string id_;
  absl::flat_hash_map<std::string, const Json*> anchors_;
};

}  // namespace tandem::guided::json_schema
