// config.json of a Hugging Face checkpoint as a ModelConfig, in the spellings of transformers 4
// and 5. Keys, defaults and structure come from the description of the architecture that the file
// names. Thread safety: a pure function.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model_config.h"

namespace tandem::model {

// A key that is absent takes transformers' default where that is safe. The result passes
// ValidateConfig. Errors: kInvalidArgument naming the key; kUnimplemented naming the architecture
// (and listing the known ones) or the feature.
absl::StatusOr<ModelConfig> ParseHuggingFaceConfig(absl::string_view config_json);

}  // namespace tandem::model
