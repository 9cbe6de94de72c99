// Typed access to the members of a JSON object that a client sent. A Fields object keeps the first
// fault, so a reader asks for one field after another and checks once at the end. A member that is
// null counts as absent.
//   Fields fields(body);
//   if (auto value = fields.Number("temperature")) sampling.set_temperature(*value);
//   RETURN_IF_ERROR(fields.Finish(strict));
// Thread safety: none; one reader uses it. Owner: the reader's stack. Lifetime: borrows the object.
// Errors: kInvalidArgument "path.name: value, expected …"; kUnimplemented for unserved fields.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/request/request_members.h"
#include "router/front_end/json_body.h"

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
  // A value of any type; nullptr when absent.
  const Json* Any(absl::string_view name);
  // Accepts fields that have no effect here.
  void Ignore(std::initializer_list<absl::string_view> names);
  // Refuses a field that would change the answer and is not served, unless it is absent, false or
  // empty.
  void Unserved(absl::string_view name);
  // The same of a number that changes nothing when it is `neutral`.
  void Unserved(absl::string_view name, double neutral);
  // The same of a member that the table refuses.
  void Refuse(const request::RequestMember& member);

  const Json& object() const { return object_; }
  // "path.name".
  std::string PathOf(absl::string_view name) const;
  // Records that the field has another value than `expected`, unless there is a fault already.
  void Fault(absl::string_view name, absl::string_view expected);
  // Records a fault, unless there is one already.
  void Keep(const absl::Status& status) { status_.Update(status); }
  const absl::Status& status() const { return status_; }
  // The first fault. If there is none and `strict`: a member that no call asked for is one.
  absl::Status Finish(bool strict);

 private:
  const Json& object_;
  const std::string path_;
  absl::Status status_;
  // Bound: the object's members.
  std::vector<bool> asked_for_;  // for each member, in order
};

// What a client or another API calls fields: pairs of the router's or a chat's name and the other
// one.
using FieldNames = std::vector<std::pair<std::string, std::string>>;
// `status`, with the other name where its message begins with the first one: "stop: …",
// "stop[1]: …". Of several names the first that fits counts.
absl::Status RenameField(const absl::Status& status, const FieldNames& names);

// Token ids in `list`, or a fault naming `path`.
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const Json& list, const std::string& path);

}  // namespace tandem::router
