// AES-256-GCM under one key, as the KV plane uses it for one direction of one connection and one
// generation of its keys. A frame's header is encrypted or only authenticated, its payload is
// encrypted; each has a tag of 16 bytes.
//
// No nonce is used twice with a key. A nonce is the part (4 bytes: header or payload) and the
// frame's sequence number (8 bytes), in network byte order. SendingKeys (session_keys.h) gives each
// number out once for the life of a connection, whatever the generation; the number belongs to one
// header and at most one payload. The two directions of a connection, its generations and all other
// connections have other keys (key_agreement.h).
//
// Authenticated headers cost half of what an HMAC-SHA-256 costs (docs/measurements has the
// numbers). Thread safety: none; OpenSSL's context holds the message in work. Owner: SendingKeys or
// ReceivingKeys.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/transfer/kv_transport.h"

struct evp_cipher_ctx_st;  // OpenSSL's EVP_CIPHER_CTX

namespace tandem::transfer {

inline constexpr size_t kCipherTagBytes = 16;
inline constexpr size_t kCipherKeyBytes = 32;

class FrameCipher {
 public:
  enum class Use { kSeal, kOpen };
  enum class Part : uint32_t { kHeader = 0, kPayload = 1 };
  // Names one message under the key. REQUIRES for sealing: it was not used before.
  struct Nonce {
    Part part = Part::kHeader;
    uint64_t sequence = 0;
  };
  using Tag = std::array<uint8_t, kCipherTagBytes>;

  // REQUIRES: `key` has kCipherKeyBytes bytes.
  FrameCipher(Use use, absl::Span<const uint8_t> key);

  // Writes the encrypted `plain`, as many bytes, to `sealed` and returns the tag over it and
  // `clear`. REQUIRES: made for kSeal; `sealed` does not overlap `plain`.
  Tag Seal(const Nonce& nonce, absl::string_view clear, const GatherList& plain, std::byte* sealed);
  // Decrypts `bytes` in place; whether `tag` is theirs and that of `clear`. When it is not, `bytes`
  // hold nothing that may be used. REQUIRES: made for kOpen.
  bool Open(const Nonce& nonce, absl::string_view clear, const ScatterList& bytes,
            absl::string_view tag);

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  void Begin(const Nonce& nonce, absl::string_view clear);
  void Update(const std::byte* from, std::byte* to, size_t bytes);

  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
};

}  // namespace tandem::transfer
