// The one hash of byte strings that the tokenizer's tables use. Thread safety: a pure function.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>

#include "absl/strings/string_view.h"

namespace tandem::model::tokenizer_internal {

inline uint64_t HashBytes(absl::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace tandem::model::tokenizer_internal
