// Flags that constrain an answer's form.
// Thread safety: none; the main thread parses flags.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/schema.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

struct GuidedFlags {
  std::string json_schema;  // a file
  bool json_object = false;
  std::string regex;
  std::vector<std::string> choice;
  std::string grammar;  // a file
};

// `flags` outlives `schema`. The schema refuses a flag with an empty value.
void RegisterGuidedFlags(config::Schema& schema, GuidedFlags& flags);
// kInvalidArgument for more than one of them; kNotFound for a file that cannot be read.
absl::Status ApplyGuidedFlags(const GuidedFlags& flags, v1::GenerateRequest& request);

}  // namespace tandem::cli
