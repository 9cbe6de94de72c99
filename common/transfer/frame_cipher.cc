#include "common/transfer/frame_cipher.h"

#include <openssl/evp.h>

#include <algorithm>

#include "common/base/check.h"

namespace tandem::transfer {
namespace {

constexpr size_t kCipherNonceBytes = 12;
// OpenSSL counts in int.
constexpr size_t kUpdateBytesMax = size_t{1} << 30;

const unsigned char* Unsigned(const void* bytes) {
  return static_cast<const unsigned char*>(bytes);
}

std::array<unsigned char, kCipherNonceBytes> NonceBytes(const FrameCipher::Nonce& nonce) {
  std::array<unsigned char, kCipherNonceBytes> bytes = {};
  const auto part = static_cast<uint32_t>(nonce.part);
  for (size_t i = 0; i < sizeof part; ++i) {
    bytes[i] = static_cast<unsigned char>(part >> (8 * (sizeof part - 1 - i)));
  }
  for (size_t i = 0; i < sizeof nonce.sequence; ++i) {
    bytes[sizeof part + i] =
        static_cast<unsigned char>(nonce.sequence >> (8 * (sizeof nonce.sequence - 1 - i)));
  }
  return bytes;
}

}  // namespace

void FrameCipher::Free::operator()(evp_cipher_ctx_st* context) const {
  EVP_CIPHER_CTX_free(context);  // overwrites the key
}

FrameCipher::FrameCipher(Use use, absl::Span<const uint8_t> key) : context_(EVP_CIPHER_CTX_new()) {
  TANDEM_CHECK(context_ != nullptr && key.size() == kCipherKeyBytes, "key of ", key.size());
  TANDEM_CHECK(EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, key.data(), nullptr,
                                 use == Use::kSeal ? 1 : 0) == 1,
               "OpenSSL has no AES-256-GCM");
}

void FrameCipher::Begin(const Nonce& nonce, absl::string_view clear) {
  const auto bytes = NonceBytes(nonce);
  int written = 0;
  TANDEM_CHECK(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, bytes.data(), -1) == 1);
  TANDEM_CHECK(EVP_CipherUpdate(context_.get(), nullptr, &written, Unsigned(clear.data()),
                                static_cast<int>(clear.size())) == 1);
}

void FrameCipher::Update(const std::byte* from, std::byte* to, size_t bytes) {
  while (bytes > 0) {
    const size_t count = std::min(bytes, kUpdateBytesMax);
    int written = 0;
    TANDEM_CHECK(EVP_CipherUpdate(context_.get(), reinterpret_cast<unsigned char*>(to), &written,
                                  Unsigned(from), static_cast<int>(count)) == 1 &&
                 written == static_cast<int>(count));
    from += count;
    to += count;
    bytes -= count;
  }
}

FrameCipher::Tag FrameCipher::Seal(const Nonce& nonce, absl::string_view clear,
                                   const GatherList& plain, std::byte* sealed) {
  Begin(nonce, clear);
  for (const absl::Span<const std::byte> piece : plain) {
    Update(piece.data(), sealed, piece.size());
    sealed += piece.size();
  }
  Tag tag = {};
  int written = 0;
  TANDEM_CHECK(EVP_CipherFinal_ex(context_.get(), tag.data(), &written) == 1 && written == 0);
  TANDEM_CHECK(
      EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kCipherTagBytes, tag.data()) == 1);
  return tag;
}

bool FrameCipher::Open(const Nonce& nonce, absl::string_view clear, const ScatterList& bytes,
                       absl::string_view tag) {
  if (tag.size() != kCipherTagBytes) return false;
  Begin(nonce, clear);
  for (const absl::Span<std::byte> piece : bytes) Update(piece.data(), piece.data(), piece.size());
  Tag expected = {};
  std::copy(tag.begin(), tag.end(), expected.begin());
  TANDEM_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kCipherTagBytes,
                                   expected.data()) == 1);
  int written = 0;
  unsigned char rest[kCipherTagBytes];
  return EVP_CipherFinal_ex(context_.get(), rest, &written) == 1;
}

}  // namespace tandem::transfer
