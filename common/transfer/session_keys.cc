#include "common/transfer/session_keys.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace tandem::transfer {
namespace {

constexpr char kCipherPurpose[] = "tandem kv cipher";
constexpr char kNextPurpose[] = "tandem kv next generation";
// No sender gets there (KeyLimits::sequences_max); a count above it cannot overflow.
constexpr uint64_t kNumberMax = uint64_t{1} << 62;

struct HkdfInput {
  int mode = 0;
  absl::string_view key, salt, purpose;
};

OSSL_PARAM Octets(const char* name, absl::string_view bytes) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(bytes.data()), bytes.size());
}

SecretKey Hkdf(const HkdfInput& input) {
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> hkdf(
      EVP_KDF_fetch(nullptr, "HKDF", nullptr), &EVP_KDF_free);
  TANDEM_CHECK(hkdf != nullptr, "OpenSSL has no HKDF");
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(
      EVP_KDF_CTX_new(hkdf.get()), &EVP_KDF_CTX_free);
  int mode = input.mode;
  char digest[] = "SHA256";
  std::vector<OSSL_PARAM> params = {
      OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      Octets(OSSL_KDF_PARAM_KEY, input.key)};
  if (!input.salt.empty()) params.push_back(Octets(OSSL_KDF_PARAM_SALT, input.salt));
  if (!input.purpose.empty()) params.push_back(Octets(OSSL_KDF_PARAM_INFO, input.purpose));
  params.push_back(OSSL_PARAM_construct_end());
  SecretKey out;
  TANDEM_CHECK(EVP_KDF_derive(context.get(), out.mutable_bytes().data(), kCipherKeyBytes,
                              params.data()) == 1,
               "HKDF failed");
  return out;
}

std::unique_ptr<FrameCipher> CipherOf(const SecretKey& secret, FrameCipher::Use use) {
  return std::make_unique<FrameCipher>(use, HkdfExpand(secret, kCipherPurpose).bytes());
}

}  // namespace

SecretKey::~SecretKey() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

SecretKey HkdfExtract(absl::string_view salt, absl::string_view input) {
  return Hkdf({.mode = EVP_KDF_HKDF_MODE_EXTRACT_ONLY, .key = input, .salt = salt, .purpose = ""});
}

SecretKey HkdfExpand(const SecretKey& key, absl::string_view purpose) {
  const absl::string_view bytes(reinterpret_cast<const char*>(key.bytes().data()),
                                key.bytes().size());
  return Hkdf(
      {.mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY, .key = bytes, .salt = "", .purpose = purpose});
}

// ---- Sending --------------------------------------------------------------------------------

SendingKeys::SendingKeys(const SecretKey& secret, const KeyLimits& limits, absl::Time now)
    : limits_(limits) {
  Begin(secret, now);
}

void SendingKeys::Begin(const SecretKey& secret, absl::Time now) {
  cipher_ = CipherOf(secret, FrameCipher::Use::kSeal);
  next_secret_ = HkdfExpand(secret, kNextPurpose);
  bytes_ = frames_ = 0;
  born_ = now;
}

absl::StatusOr<SendingKeys::Stamp> SendingKeys::Next(int64_t bytes, absl::Time now) {
  if (next_sequence_ >= limits_.sequences_max) {
    return absl::ResourceExhaustedError(absl::StrCat("the connection has sent ", next_sequence_,
                                                     " frames, the most under one handshake"));
  }
  if (frames_ >= limits_.frames_max || bytes_ + bytes > limits_.bytes_max ||
      now - born_ >= limits_.age_max) {
    ++generation_;
    const SecretKey secret = next_secret_;
    Begin(secret, now);
  }
  ++frames_;
  bytes_ += bytes;
  return Stamp{.generation = generation_, .sequence = next_sequence_++, .cipher = cipher_.get()};
}

// ---- Receiving ------------------------------------------------------------------------------

bool ReplayWindow::Takes(uint64_t number) const {
  if (number >= kNumberMax) return false;
  if (number >= end_) return true;
  if (end_ - number > kNumbers) return false;
  const uint64_t slot = number % kNumbers;
  return (seen_[slot / 64] >> (slot % 64) & 1) == 0;
}

void ReplayWindow::Add(uint64_t number) {
  TANDEM_CHECK(Takes(number), "number ", number);
  const auto mask = [](uint64_t slot) { return uint64_t{1} << (slot % 64); };
  if (number >= end_ && number - end_ >= kNumbers) {
    std::fill(seen_.begin(), seen_.end(), 0);
    end_ = number + 1;
  }
  for (; end_ <= number; ++end_) {
    const uint64_t slot = end_ % kNumbers;
    seen_[slot / 64] &= ~mask(slot);
  }
  const uint64_t slot = number % kNumbers;
  seen_[slot / 64] |= mask(slot);
}

ReceivingKeys::ReceivingKeys(const SecretKey& secret) : next_secret_(secret) {
  current_ = TakeNext();
  next_ = TakeNext();
}

ReceivingKeys::SharedCipher ReceivingKeys::TakeNext() {
  const SecretKey secret = next_secret_;
  next_secret_ = HkdfExpand(secret, kNextPurpose);
  return CipherOf(secret, FrameCipher::Use::kOpen);
}

ReceivingKeys::SharedCipher ReceivingKeys::Find(uint32_t generation) const {
  if (generation == generation_) return current_;
  if (generation == generation_ + 1) return next_;
  if (generation + 1 == generation_) return previous_;
  return nullptr;
}

void ReceivingKeys::Accept(uint32_t generation, uint64_t sequence) {
  window_.Add(sequence);
  if (generation != generation_ + 1) return;
  ++generation_;
  previous_ = std::move(current_);
  current_ = std::move(next_);
  next_ = TakeNext();
}

}  // namespace tandem::transfer
