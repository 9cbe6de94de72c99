#include "common/kv/block_hash.h"

#include <xxhash.h>

#include <bit>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace tandem::kv {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token ids are hashed as they lie in memory, which is little-endian on the wire");

BlockHash FromXxh(const XXH128_hash_t& hash) { return {hash.high64, hash.low64}; }

void StoreBigEndian(uint64_t value, char* out) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(value >> (56 - 8 * i));
}

uint64_t LoadBigEndian(const char* bytes) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

void AppendPart(std::string& buffer, absl::string_view part) {
  char length[8];
  StoreBigEndian(part.size(), length);
  buffer.append(length, sizeof(length));
  buffer.append(part.data(), part.size());
}

// Owns an XXH3 streaming state, so that tokens are hashed where they lie.
class Xxh3State {
 public:
  Xxh3State() : state_(XXH3_createState()) { TANDEM_CHECK(state_ != nullptr); }
  ~Xxh3State() { XXH3_freeState(state_); }
  Xxh3State(const Xxh3State&) = delete;
  Xxh3State& operator=(const Xxh3State&) = delete;

  BlockHash Chain(const BlockHash& parent, absl::Span<const TokenId> tokens) {
    char head[kBlockHashBytes];
    StoreBigEndian(parent.high, head);
    StoreBigEndian(parent.low, head + 8);
    XXH3_128bits_reset(state_);
    XXH3_128bits_update(state_, head, sizeof(head));
    XXH3_128bits_update(state_, tokens.data(), tokens.size() * sizeof(TokenId));
    return FromXxh(XXH3_128bits_digest(state_));
  }

 private:
  XXH3_state_t* const state_;
};

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

BlockHash SaltHash(absl::string_view model_fingerprint, absl::string_view numerics_id,
                   absl::string_view cache_salt) {
  std::string buffer;
  AppendPart(buffer, model_fingerprint);
  AppendPart(buffer, numerics_id);
  AppendPart(buffer, cache_salt);
  return FromXxh(XXH3_128bits(buffer.data(), buffer.size()));
}

BlockHash NextBlockHash(const BlockHash& parent, absl::Span<const TokenId> block_tokens) {
  return Xxh3State().Chain(parent, block_tokens);
}

std::vector<BlockHash> HashBlocks(const BlockHash& salt, absl::Span<const TokenId> tokens,
                                  int block_tokens) {
  TANDEM_CHECK(block_tokens > 0, "block_tokens is ", block_tokens);
  std::vector<BlockHash> hashes;
  hashes.reserve(tokens.size() / block_tokens);
  Xxh3State state;
  BlockHash parent = salt;
  for (size_t begin = 0; begin + block_tokens <= tokens.size(); begin += block_tokens) {
    parent = state.Chain(parent, tokens.subspan(begin, block_tokens));
    hashes.push_back(parent);
  }
  return hashes;
}

}  // namespace tandem::kv
