#include "common/kv/block_hash.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace tandem::kv {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token ids are hashed as they lie in memory, which is little-endian on the wire");

BlockHash FromXxh(const XXH128_hash_t& hash) { return {hash.high64, hash.low64}; }

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

// Hashes a parent's hash and a block's tokens. A block of usual size is first copied behind its
// parent's hash: hashing the two parts where they lie takes three times as long.
BlockHash Chain(const BlockHash& parent, absl::Span<const TokenId> tokens) {
  constexpr size_t kTokensTogether = 256;
  char head[kBlockHashBytes + kTokensTogether * sizeof(TokenId)];
  StoreBigEndian(parent.high, head);
  StoreBigEndian(parent.low, head + 8);
  const size_t bytes = tokens.size() * sizeof(TokenId);
  if (tokens.size() <= kTokensTogether) {
    if (bytes > 0) std::memcpy(head + kBlockHashBytes, tokens.data(), bytes);
    return FromXxh(XXH3_128bits(head, kBlockHashBytes + bytes));
  }
  XXH3_state_t* const state = XXH3_createState();
  TANDEM_CHECK(state != nullptr);
  XXH3_128bits_reset(state);
  XXH3_128bits_update(state, head, kBlockHashBytes);
  XXH3_128bits_update(state, tokens.data(), bytes);
  const BlockHash hash = FromXxh(XXH3_128bits_digest(state));
  XXH3_freeState(state);
  return hash;
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

BlockHash SaltHash(absl::string_view model_fingerprint, absl::string_view numerics_id,
                   absl::string_view cache_salt) {
  std::string buffer;
  AppendPart(buffer, model_fingerprint);
  AppendPart(buffer, numerics_id);
  AppendPart(buffer, cache_salt);
  return FromXxh(XXH3_128bits(buffer.data(), buffer.size()));
}

BlockHash NextBlockHash(const BlockHash& parent, absl::Span<const TokenId> block_tokens) {
  return Chain(parent, block_tokens);
}

std::vector<BlockHash> HashBlocks(const BlockHash& salt, absl::Span<const TokenId> tokens,
                                  int block_tokens) {
  TANDEM_CHECK(block_tokens > 0, "block_tokens is ", block_tokens);
  std::vector<BlockHash> hashes;
  hashes.reserve(tokens.size() / block_tokens);
  BlockHash parent = salt;
  for (size_t begin = 0; begin + block_tokens <= tokens.size(); begin += block_tokens) {
    parent = Chain(parent, tokens.subspan(begin, block_tokens));
    hashes.push_back(parent);
  }
  return hashes;
}

}  // namespace tandem::kv
