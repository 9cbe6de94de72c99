#include "common/base/keyed_tag.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace tandem {

std::string KeyedTag(absl::string_view secret, absl::string_view purpose, absl::string_view bytes) {
  const std::string message = absl::StrCat(purpose, absl::string_view("\0", 1), bytes);
  std::string tag(kKeyedTagBytes, '\0');
  unsigned int size = 0;
  TANDEM_CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                    reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                    reinterpret_cast<unsigned char*>(tag.data()), &size) != nullptr &&
                   size == kKeyedTagBytes,
               "HMAC-SHA256 gave ", size, " bytes");
  return tag;
}

bool IsKeyedTag(absl::string_view tag, absl::string_view secret, absl::string_view purpose,
                absl::string_view bytes) {
  const std::string right = KeyedTag(secret, purpose, bytes);
  return tag.size() == right.size() && CRYPTO_memcmp(tag.data(), right.data(), tag.size()) == 0;
}

}  // namespace tandem
