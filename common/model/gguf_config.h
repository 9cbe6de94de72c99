// The metadata of a GGUF file as a ModelConfig. Keys, defaults and structure come from the
// architecture's description. Thread safety: pure functions.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/architecture/architecture.h"
#include "common/model/gguf.h"
#include "common/model/model_config.h"

namespace tandem::model {

// The description of the file's architecture. Errors: kInvalidArgument if the file names none;
// kUnimplemented naming an unknown one and listing the known ones.
absl::StatusOr<const Architecture*> FindGgufArchitecture(const GgufFile& file);

// `bytes`: the whole file, which RoPE frequency factors are read from. The result passes
// ValidateConfig. Errors: kInvalidArgument naming the key or tensor; kUnimplemented naming the
// feature.
absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file, const Architecture& architecture,
                                           absl::Span<const std::byte> bytes);

}  // namespace tandem::model
