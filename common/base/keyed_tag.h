// Tags that only those who hold a secret can make: HMAC-SHA256 (RFC 2104) over a purpose and bytes.
// A tag made for one purpose is none for another. Under an empty secret anybody can make them.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

inline constexpr size_t kKeyedTagBytes = 32;

// `purpose`: of our own choosing, without a zero byte.
std::string KeyedTag(absl::string_view secret, absl::string_view purpose, absl::string_view bytes);
// Whether `tag` is that tag; takes the same time wherever they differ.
bool IsKeyedTag(absl::string_view tag, absl::string_view secret, absl::string_view purpose,
                absl::string_view bytes);

}  // namespace tandem
