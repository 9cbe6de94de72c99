// One tier of a node's storage: whole KV blocks, found by their hashes, within a bound. BlockFile
// is the real one; the simulator has another. Thread safety: none; one thread. Owner: BlockTiers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/kv/block_hash.h"

namespace tandem::storage {

class BlockStore {
 public:
  virtual ~BlockStore() = default;

  // Stores the block whose bytes are `pieces`, one after another, and appends the hash that made
  // room, if one did, to `removed` (use_order.h says which). `parent`: the block before it; all
  // zero: there is none, or it is not known. Without effect if the hash is stored, or if only
  // blocks that precede it could make room. Errors: the system's (kResourceExhausted when the disk
  // is full); the block is then not stored.
  virtual absl::Status Save(const kv::BlockHash& hash, const kv::BlockHash& parent,
                            absl::Span<const absl::Span<const std::byte>> pieces,
                            std::vector<kv::BlockHash>& removed) = 0;
  // Reads the block into `pieces`. Errors: kNotFound; kDataLoss when its checksum differs and the
  // system's: the block is then dropped.
  virtual absl::Status Load(const kv::BlockHash& hash,
                            absl::Span<const absl::Span<std::byte>> pieces) = 0;
  // The block was used, though not read from here: others make room before it.
  virtual void Touch(const kv::BlockHash& hash) = 0;
  // Drops the block, if it is stored.
  virtual void Forget(const kv::BlockHash& hash) = 0;

  virtual bool Contains(const kv::BlockHash& hash) const = 0;
  // As Save was told; all zero if the hash is not stored.
  virtual kv::BlockHash ParentOf(const kv::BlockHash& hash) const = 0;
  // The stored hashes, least recently used first.
  virtual std::vector<kv::BlockHash> Hashes() const = 0;
  virtual int64_t slots() const = 0;
  virtual int64_t size() const = 0;  // of them, those that hold a block
};

}  // namespace tandem::storage
