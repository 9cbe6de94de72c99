// What filters, tests, methods and global functions may use of the rendering that calls them:
// limits, the step counter and calls back into the template. Thread safety: belongs to one
// rendering, on one thread. Owner: the Evaluator.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/model/chat_template/value.h"

namespace tandem::model::chat_template {

// A call's evaluated arguments.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Runtime {
 public:
  virtual ~Runtime() = default;
  // Counts work against TemplateLimits::steps_max.
  virtual absl::Status Charge(int64_t steps) = 0;
  // Refuses a text of more than TemplateLimits::output_bytes_max. Call before building it.
  virtual absl::Status CheckBytes(int64_t bytes) = 0;
  virtual absl::StatusOr<Value> Call(const Value& callable, const Arguments& arguments) = 0;
  virtual absl::Time Now() const = 0;
  // Empties the namespace when the rendering ends: namespaces may form cycles.
  virtual void Own(std::shared_ptr<Namespace> name_space) = 0;
};

// A call's arguments by parameter. A missing argument is an error only when a function asks for it.
class Bound {
 public:
  // kInvalidArgument, naming `function`, for arguments that fit no parameter.
  static absl::StatusOr<Bound> Make(absl::string_view function, const Arguments& arguments,
                                    std::initializer_list<absl::string_view> parameters);

  // Null when not given.
  const Value* Get(size_t parameter) const { return values_[parameter]; }
  absl::StatusOr<Value> Required(size_t parameter) const;
  bool Flag(size_t parameter, bool otherwise) const;
  absl::StatusOr<int64_t> Int(size_t parameter, int64_t otherwise) const;
  absl::StatusOr<std::string> Text(size_t parameter, absl::string_view otherwise) const;

 private:
  absl::Status Wrong(size_t parameter, absl::string_view expected) const;

  std::string function_;
  std::vector<std::string> names_;
  std::vector<const Value*> values_;
};

// "filter: expected …, found a list".
absl::Status Expected(absl::string_view function, absl::string_view expected, const Value& found);

}  // namespace tandem::model::chat_template
