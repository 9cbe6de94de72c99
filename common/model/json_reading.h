// Typed, checked access to JSON from files that may be damaged or hostile. nlohmann_json is used
// without exceptions: parsing reports failure by value, and every access is checked first.
// Thread safety: const methods from any thread. Owner: a JsonMembers borrows the JSON object, which
// must outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tandem::model {

// The parser reads any depth, but copying a value and other walks over it recurse.
inline constexpr int kJsonDepthMax = 64;
// Whether objects and lists nest deeper than kJsonDepthMax. `text` need not be JSON.
bool NestsTooDeep(absl::string_view text);

// Parses an object. Errors: kInvalidArgument naming `what` for anything else, for one that nests
// too deep, and for a key that occurs twice at the top level.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view what);

// Members of one object, which it borrows. A member that is null counts as absent.
// Errors: kInvalidArgument naming the key, the type expected and the type found.
class JsonMembers {
 public:
  // REQUIRES: object.is_object().
  explicit JsonMembers(const nlohmann::json& object) : object_(&object) {}

  // nullptr when absent or null.
  const nlohmann::json* Find(absl::string_view key) const;
  // Present, though it may be null.
  bool Has(absl::string_view key) const { return object_->contains(key); }

  absl::StatusOr<std::optional<int64_t>> Integer(absl::string_view key) const;
  absl::StatusOr<std::optional<double>> Number(absl::string_view key) const;
  absl::StatusOr<std::optional<bool>> Bool(absl::string_view key) const;
  absl::StatusOr<std::optional<std::string>> String(absl::string_view key) const;
  // 0 to 2^31 - 1.
  absl::StatusOr<std::optional<int32_t>> Count(absl::string_view key) const;
  // As Count, and an error when absent.
  absl::StatusOr<int32_t> RequiredCount(absl::string_view key) const;

 private:
  const nlohmann::json* object_;
};

}  // namespace tandem::model
