// The identity of the "model" that hash-engine clusters serve, shared by routers and nodes.
// Thread safety: constants.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace tandem::model {

inline constexpr absl::string_view kHashModelName = "hash";
inline constexpr absl::string_view kHashModelFingerprint = "0000000068617368";
inline constexpr int32_t kHashModelContextTokens = 32768;

}  // namespace tandem::model
