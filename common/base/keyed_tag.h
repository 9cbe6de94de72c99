// Message authentication: a tag proves that its maker holds a secret. A tag is HMAC-SHA256 (RFC
// 2104) over a purpose and bytes. Tags are domain-separated by purpose: a tag made for one purpose
// fails the check for another. With an empty secret anyone can make tags.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

inline constexpr size_t kKeyedTagBytes = 32;

// Returns the tag, kKeyedTagBytes long. `purpose`: a constant of the caller, without a zero byte.
std::string KeyedTag(absl::string_view secret, absl::string_view purpose, absl::string_view bytes);
// Whether `tag` equals that tag. Takes constant time, so that timing does not reveal a prefix.
bool IsKeyedTag(absl::string_view tag, absl::string_view secret, absl::string_view purpose,
                absl::string_view bytes);

}  // namespace tandem
