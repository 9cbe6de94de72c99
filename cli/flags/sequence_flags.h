// Flags of how many answers a request has, and of everything else it can ask for.
// Thread safety: none; the main thread parses flags.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/config/schema.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

struct SequenceFlags {
  int32_t n = 1;
  int32_t best_of = 0;
  int32_t beam_width = 0;
  bool echo = false;
  std::string params;  // JSON of a GenerateRequest: whatever has no flag of its own
};

// `flags` outlives `schema`.
void RegisterSequenceFlags(config::Schema& schema, SequenceFlags& flags);
// What `params` names wins over all that `request` holds: call it after other flags have been
// applied. kInvalidArgument says what is wrong with it.
absl::Status ApplySequenceFlags(const SequenceFlags& flags, v1::GenerateRequest& request);

}  // namespace tandem::cli
