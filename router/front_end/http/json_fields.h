// Typed access to the members of a JSON object that a client sent. The first fault is kept, so
// reading goes on without a check at each field; a null member counts as absent.
//   Fields fields(body);
//   if (auto value = fields.Number("temperature")) sampling.set_temperature(*value);
//   RETURN_IF_ERROR(fields.Finish(strict));
// Thread safety: none. Lifetime: borrows the object.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/front_end/http/json_body.h"

namespace tandem::router {

struct IntegerRange {
  int64_t low = std::numeric_limits<int32_t>::min();
  int64_t high = std::numeric_limits<int32_t>::max();
};

class Fields {
 public:
  // `path` names the object in messages: "" for the body itself. REQUIRES: object.is_object().
  explicit Fields(const Json& object, std::string path = "")
      : object_(object), path_(std::move(path)), asked_for_(object.size()) {}

  std::optional<bool> Bool(absl::string_view name);
  // A finite number.
  std::optional<double> Number(absl::string_view name);
  // A whole number within `range`; 3.0 is one.
  std::optional<int64_t> Integer(absl::string_view name, IntegerRange range = {});
  std::optional<std::string> String(absl::string_view name);
  // A string, or a list of strings.
  std::vector<std::string> Strings(absl::string_view name);
  // A list of whole numbers, each a possible token id.
  std::vector<int32_t> TokenIds(absl::string_view name);
  // An object; nullptr when absent.
  const Json* Object(absl::string_view name);
  // Whatever it is; nullptr when absent.
  const Json* Any(absl::string_view name);
  // Fields with no effect here.
  void Ignore(std::initializer_list<absl::string_view> names);
  // A field that changes the answer and is not served: refused unless absent, false, or empty.
  void Unserved(absl::string_view name);

  // "path.name".
  std::string PathOf(absl::string_view name) const;
  void Fault(absl::string_view name, absl::string_view expected);
  void Keep(const absl::Status& status) { status_.Update(status); }
  const absl::Status& status() const { return status_; }
  // The first fault; when `strict`, also a field that was never asked for.
  absl::Status Finish(bool strict);

 private:
  const Json& object_;
  const std::string path_;
  absl::Status status_;
  // Bound: the object's members.
  std::vector<bool> asked_for_;  // of each member
};

// Token ids in `list`, or a fault naming `path`.
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const Json& list, const std::string& path);

}  // namespace tandem::router
