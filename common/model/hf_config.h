// config.json of a Hugging Face checkpoint as a ModelConfig, in the spellings of transformers 4
// and 5. A pure function.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model_config.h"

namespace tandem::model {

// Absent keys take transformers' defaults where it has a safe one.
// Errors: kInvalidArgument naming the key; kUnimplemented naming the architecture or feature.
absl::StatusOr<ModelConfig> ParseHuggingFaceConfig(absl::string_view config_json);

}  // namespace tandem::model
