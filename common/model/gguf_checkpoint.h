// Opens a GGUF file as a Checkpoint: configuration (gguf_config.h), tensors, tokenizer and chat
// template. Thread safety: pure functions; the result as Checkpoint.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"
#include "common/model/mapped_file.h"

namespace tandem::model {

// The checkpoint keeps `file`. Errors: as Checkpoint::Open, without the path.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGgufCheckpoint(std::unique_ptr<MappedFile> file);

}  // namespace tandem::model
