// Brings a model to this disk.
// Thread safety: a function; one process at a time brings one model.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/model/model_store.h"

namespace tandem::cli {

struct PullOptions {
  bool progress = true;
  int64_t attempts = 6;  // that bring nothing new, one after another
  // Waits at most as long as said; false: give up.
  std::function<bool(absl::Duration)> wait;
};

// Brings what is not here yet, and marks the model as whole. A whole model of an earlier pull stays
// as it was until everything that replaces some of it has arrived. Errors: kInvalidArgument for a
// malformed name; kFailedPrecondition when another process brings the model; kResourceExhausted
// when the disk has not enough room; otherwise as Downloader and ChooseFiles.
absl::StatusOr<model::StoredModel> PullModel(const std::string& name,
                                             const std::map<std::string, std::string>& env,
                                             const PullOptions& options);

}  // namespace tandem::cli
