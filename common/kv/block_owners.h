// Which tenant each KV block of a pool counts for, and which of a tenant's cached blocks goes first
// when it holds more than its share. A block counts for the tenant whose sequence it was allocated
// for, or, if for no tenant, for the first whose sequence uses it; until the pool frees it.
//
// Thread safety: none; the BlockPool owns it.
// Invariants: a tenant has an entry exactly while blocks count for it.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "common/base/ids.h"

namespace tandem::kv {

// Whom blocks count for. Without a share they count for no tenant.
struct BlockOwner {
  std::string tenant;
  double share = 0;  // of the pool, in (0, 1]

  bool any() const { return share > 0; }
};

class BlockOwners {
 public:
  struct Counts {
    std::string tenant;
    int64_t used = 0, cached = 0;
  };

  explicit BlockOwners(int64_t num_blocks) : num_blocks_(num_blocks) {
    blocks_.reserve(static_cast<size_t>(num_blocks));
  }

  // A used block counts for `owner` from now on, if it counted for none. The owner's share is
  // that of the last call.
  void OnUsedBy(BlockId block, const BlockOwner& owner);
  // The pool's changes of a block's state. No effect on blocks that count for no tenant.
  void OnCached(BlockId block);
  void OnTakenFromCache(BlockId block);
  // REQUIRES: the block is not cached.
  void OnFreed(BlockId block);

  // The cached block that `owner`, which wants `more` blocks, must give back: its least recently
  // used one for which `evictable`. nullopt when it is within its share, or has none.
  std::optional<BlockId> ToEvict(const BlockOwner& owner, int64_t more,
                                 absl::FunctionRef<bool(BlockId)> evictable) const;
  // The same for the owner of `block`, which wants none.
  std::optional<BlockId> ToEvictFor(BlockId block,
                                    absl::FunctionRef<bool(BlockId)> evictable) const;
  // Of all tenants for which blocks count, in no order.
  std::vector<Counts> counts() const;

 private:
  struct Entry {
    double share = 0;
    int64_t used = 0;
    // Bound: --kv-blocks, all entries together. Least recently used first.
    std::list<BlockId> cached;
  };
  using Entries = absl::node_hash_map<std::string, Entry>;
  struct Block {
    Entries::value_type* owner = nullptr;  // null: no tenant
    std::list<BlockId>::iterator cached;   // valid while cached
  };
  // Null: the block counts for no tenant.
  const Block* Owned(BlockId block) const {
    const auto at = static_cast<size_t>(block.value());
    return at < blocks_.size() && blocks_[at].owner != nullptr ? &blocks_[at] : nullptr;
  }
  Block* Owned(BlockId block) {
    return const_cast<Block*>(static_cast<const BlockOwners*>(this)->Owned(block));
  }
  std::optional<BlockId> ToEvict(const Entry& entry, int64_t more,
                                 absl::FunctionRef<bool(BlockId)> evictable) const;

  const int64_t num_blocks_;
  // As far as blocks have ever counted for tenants; the rest of the memory is not touched. Bound:
  // --kv-blocks.
  std::vector<Block> blocks_;
  // By tenant. Bound: --kv-blocks, because each has a block.
  Entries entries_;
};

}  // namespace tandem::kv
