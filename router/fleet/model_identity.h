// Which model the router serves. A node must serve the same one to join, and clients name it in
// their requests. ModelAssets fills it in from the checkpoint and the configuration.
// Thread safety: a value; nothing changes it once the router has started.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/shown_text.h"

namespace tandem::router {

struct ModelIdentity {
  std::string name;         // the checkpoint's own
  std::string fingerprint;  // of the checkpoint's configuration and weights
  int32_t vocab_size = 0;
  int32_t context_tokens = 0;
  // Names that clients may use beside `name`. Answers carry the first one.
  std::vector<std::string> served_names;
  bool mixed_numerics = false;  // a copy of RouterOptions::allow_mixed_numerics, for answers

  // The name that answers carry.
  const std::string& served_name() const {
    return served_names.empty() ? name : served_names.front();
  }
  // Whether `asked` is one of the model's names.
  bool Serves(const std::string& asked) const {
    return asked == name ||
           std::find(served_names.begin(), served_names.end(), asked) != served_names.end();
  }
  // kNotFound for a name that a client asked for and the model has not.
  absl::Status NotServed(absl::string_view asked) const {
    return absl::NotFoundError(absl::StrCat("model: ", ShownInQuotes(asked),
                                            " is not served here, this router serves \"",
                                            served_name(), "\""));
  }
};

}  // namespace tandem::router
