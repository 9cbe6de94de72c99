// Opens a Hugging Face directory as a Checkpoint: config.json, safetensors (single or sharded) with
// the scales of fp8 tensors, and the files of the tokenizer and the chat template.
// Thread safety: functions without shared state; the result as Checkpoint.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"

namespace tandem::model {

// Errors: as Checkpoint::Open; each names the file.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenHuggingFaceCheckpoint(const std::string& folder);

}  // namespace tandem::model
