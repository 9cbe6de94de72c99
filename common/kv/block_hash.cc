#include "common/kv/block_hash.h"

#include <openssl/evp.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/keyed_tag.h"

namespace tandem::kv {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token ids are hashed as they lie in memory, which is little-endian on the wire");

// Changes whenever the same tokens would get other names.
constexpr absl::string_view kVersion = "sha256-1";
constexpr absl::string_view kKeyPurpose = "tandem block key";
constexpr absl::string_view kFingerprintPurpose = "tandem block key fingerprint";
constexpr size_t kFingerprintBytes = 8;
// Stands where a block has its parent's hash.
constexpr char kRoot[] = "block chain root";
static_assert(sizeof(kRoot) - 1 == kBlockHashBytes);

// Compilers do not turn loops over the bytes into a single instruction.
void StoreBigEndian(uint64_t value, char* out) {
  value = __builtin_bswap64(value);
  std::memcpy(out, &value, sizeof value);
}

uint64_t LoadBigEndian(const char* bytes) {
  uint64_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return __builtin_bswap64(value);
}

void AppendPart(std::string& buffer, absl::string_view part) {
  char length[8];
  StoreBigEndian(part.size(), length);
  buffer.append(length, sizeof(length));
  buffer.append(part.data(), part.size());
}

}  // namespace

std::string PackHashes(absl::Span<const BlockHash> hashes) {
  std::string bytes(hashes.size() * kBlockHashBytes, '\0');
  char* next = bytes.data();
  for (const BlockHash& hash : hashes) {
    StoreBigEndian(hash.high, next);
    StoreBigEndian(hash.low, next + 8);
    next += kBlockHashBytes;
  }
  return bytes;
}

absl::StatusOr<std::vector<BlockHash>> UnpackHashes(absl::string_view bytes) {
  if (bytes.size() % kBlockHashBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("block hashes: expected ", kBlockHashBytes,
                                                   " bytes each, got ", bytes.size(), " in all"));
  }
  std::vector<BlockHash> hashes(bytes.size() / kBlockHashBytes);
  const char* next = bytes.data();
  for (BlockHash& hash : hashes) {
    hash = {LoadBigEndian(next), LoadBigEndian(next + 8)};
    next += kBlockHashBytes;
  }
  return hashes;
}

BlockKey BlockKey::FromSecret(absl::string_view fleet_secret) {
  static_assert(kBytes == kKeyedTagBytes);
  std::array<unsigned char, kBytes> bytes;
  std::memcpy(bytes.data(), KeyedTag(fleet_secret, kKeyPurpose, "").data(), kBytes);
  return BlockKey(bytes);
}

std::string BlockKey::names() const {
  const absl::string_view key(reinterpret_cast<const char*>(bytes_.data()), kBytes);
  const std::string tag = KeyedTag(key, kFingerprintPurpose, "").substr(0, kFingerprintBytes);
  return absl::StrCat(kVersion, ":", absl::BytesToHexString(tag));
}

struct BlockHasher::Digest {
  // Fetched once: looking the algorithm up takes twice as long as a hash.
  EVP_MD* const sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  EVP_MD_CTX* const context = EVP_MD_CTX_new();

  Digest() { TANDEM_CHECK(sha256 != nullptr && context != nullptr, "OpenSSL has no SHA-256"); }
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;
  ~Digest() {
    EVP_MD_CTX_free(context);
    EVP_MD_free(sha256);
  }
};

BlockHasher::BlockHasher(const BlockKey& key) : key_(key), digest_(std::make_unique<Digest>()) {}
BlockHasher::~BlockHasher() = default;

BlockHash BlockHasher::Hash(const char* head, absl::string_view rest) {
  EVP_MD_CTX* const context = digest_->context;
  char prefix[BlockKey::kBytes + kBlockHashBytes];
  std::memcpy(prefix, key_.bytes().data(), BlockKey::kBytes);
  std::memcpy(prefix + BlockKey::kBytes, head, kBlockHashBytes);
  unsigned char out[EVP_MAX_MD_SIZE];
  TANDEM_CHECK(EVP_DigestInit_ex2(context, digest_->sha256, nullptr) == 1 &&
                   EVP_DigestUpdate(context, prefix, sizeof prefix) == 1 &&
                   EVP_DigestUpdate(context, rest.data(), rest.size()) == 1 &&
                   EVP_DigestFinal_ex(context, out, nullptr) == 1,
               "SHA-256 failed");
  const char* bytes = reinterpret_cast<const char*>(out);
  return {LoadBigEndian(bytes), LoadBigEndian(bytes + 8)};
}

BlockHash BlockHasher::Salt(absl::string_view model_fingerprint, absl::string_view numerics_id,
                            absl::string_view cache_salt) {
  std::string parts;
  AppendPart(parts, model_fingerprint);
  AppendPart(parts, numerics_id);
  AppendPart(parts, cache_salt);
  return Hash(kRoot, parts);
}

BlockHash& BlockNameMemo::Find(const BlockHash& parent, absl::Span<const TokenId> block_tokens) {
  if (names_.size() >= names_max_) names_.clear();
  const uint64_t tokens = XXH3_64bits(block_tokens.data(), block_tokens.size() * sizeof(TokenId));
  return names_[{.parent = parent, .tokens = tokens}];
}

BlockHash BlockHasher::Next(const BlockHash& parent, absl::Span<const TokenId> block_tokens) {
  if (key_.memo() == nullptr) return Compute(parent, block_tokens);
  BlockHash& name = key_.memo()->Find(parent, block_tokens);
  if (name == BlockHash()) name = Compute(parent, block_tokens);
  return name;
}

BlockHash BlockHasher::Compute(const BlockHash& parent, absl::Span<const TokenId> block_tokens) {
  char head[kBlockHashBytes];
  StoreBigEndian(parent.high, head);
  StoreBigEndian(parent.low, head + 8);
  return Hash(head, {reinterpret_cast<const char*>(block_tokens.data()),
                     block_tokens.size() * sizeof(TokenId)});
}

std::vector<BlockHash> BlockHasher::Blocks(const BlockHash& salt, absl::Span<const TokenId> tokens,
                                           int block_tokens) {
  TANDEM_CHECK(block_tokens > 0, "block_tokens is ", block_tokens);
  std::vector<BlockHash> hashes;
  hashes.reserve(tokens.size() / block_tokens);
  BlockHash parent = salt;
  for (size_t begin = 0; begin + block_tokens <= tokens.size(); begin += block_tokens) {
    parent = Next(parent, tokens.subspan(begin, block_tokens));
    hashes.push_back(parent);
  }
  return hashes;
}

}  // namespace tandem::kv
