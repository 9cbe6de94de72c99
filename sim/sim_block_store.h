// A tier of a simulated node's storage for KV blocks: its disk, which outlives the node's process
// as a file does, or its host memory, which is cleared when the process ends. It may refuse blocks
// and lose them, at random. Thread safety: none; the simulation's thread. Owner: a SimNode's
// BlockTiers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/runtime/random.h"
#include "common/storage/block_store.h"
#include "common/storage/use_order.h"

namespace tandem::sim {

class SimBlockStore final : public storage::BlockStore {
 public:
  // `blocks_max`: as a BlockFile's slots. `fails`: one save in so many is refused; 0 = none.
  // `random` outlives it.
  SimBlockStore(int64_t blocks_max, int64_t fails, Random& random)
      : blocks_max_(blocks_max), fails_(fails), random_(random) {}

  absl::Status Save(const kv::BlockHash& hash, const kv::BlockHash& parent,
                    absl::Span<const absl::Span<const std::byte>> pieces,
                    std::vector<kv::BlockHash>& removed) override;
  absl::Status Load(const kv::BlockHash& hash,
                    absl::Span<const absl::Span<std::byte>> pieces) override;
  void Touch(const kv::BlockHash& hash) override { order_.Use(hash); }
  void Forget(const kv::BlockHash& hash) override;
  bool Contains(const kv::BlockHash& hash) const override { return blocks_.count(hash) > 0; }
  kv::BlockHash ParentOf(const kv::BlockHash& hash) const override { return order_.ParentOf(hash); }
  std::vector<kv::BlockHash> Hashes() const override { return order_.Hashes(); }
  int64_t slots() const override { return blocks_max_; }
  int64_t size() const override { return static_cast<int64_t>(blocks_.size()); }

  // Damages one of its blocks, so that reading it finds another checksum; false if it has none.
  bool Damage();
  void Clear();

 private:
  struct Stored {
    std::string bytes;
    bool damaged = false;
  };

  const int64_t blocks_max_, fails_;
  Random& random_;
  // Bound: blocks_max_, for both.
  std::map<kv::BlockHash, Stored> blocks_;
  storage::UseOrder order_;
};

}  // namespace tandem::sim
