// A simulated node's disk for KV blocks. It outlives the node's process, as a file does. It may
// refuse blocks and lose them, at random.
// Thread safety: none; the simulation's thread. Owner: a SimNode.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/kv/block_arena.h"
#include "common/runtime/random.h"
#include "common/storage/block_storage.h"

namespace tandem::sim {

class SimDisk {
 public:
  // `blocks_max`: as a BlockFile's slots. `fails`: one save in so many is refused; 0 = none.
  SimDisk(int64_t blocks_max, int64_t fails) : blocks_max_(blocks_max), fails_(fails) {}

  // Least recently used first.
  std::vector<kv::BlockHash> Hashes() const;
  // Carries out `command` on the process's blocks. nullopt: it has no event. `time`: that it took.
  std::optional<storage::StorageEvent> Handle(const storage::StorageCommand& command,
                                              const kv::BlockArena& arena, absl::Duration time,
                                              Random& random);
  // Damages one of its blocks, so that reading it finds another checksum; false if it has none.
  bool Damage(Random& random);

 private:
  struct Stored {
    std::string bytes;
    bool damaged = false;
    std::list<kv::BlockHash>::iterator use;
  };
  storage::BlockSaved Save(const storage::SaveBlock& command, const kv::BlockArena& arena,
                           Random& random);
  storage::BlocksLoaded Load(const storage::LoadBlocks& command, const kv::BlockArena& arena);
  void Drop(const kv::BlockHash& hash);

  const int64_t blocks_max_, fails_;
  std::map<kv::BlockHash, Stored> blocks_;
  std::list<kv::BlockHash> uses_;  // least recent first
};

}  // namespace tandem::sim
