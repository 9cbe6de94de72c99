#include "sim/sim_disk.h"

#include <algorithm>
#include <iterator>
#include <variant>

#include "absl/strings/string_view.h"

namespace tandem::sim {

std::vector<kv::BlockHash> SimDisk::Hashes() const { return {uses_.begin(), uses_.end()}; }

void SimDisk::Drop(const kv::BlockHash& hash) {
  const auto it = blocks_.find(hash);
  if (it == blocks_.end()) return;
  uses_.erase(it->second.use);
  blocks_.erase(it);
}

bool SimDisk::Damage(Random& random) {
  if (blocks_.empty()) return false;
  std::next(blocks_.begin(), static_cast<int64_t>(random.Below(blocks_.size())))->second.damaged =
      true;
  return true;
}

storage::BlockSaved SimDisk::Save(const storage::SaveBlock& command, const kv::BlockArena& arena,
                                  Random& random) {
  const auto& [hash, block] = command.block;
  storage::BlockSaved saved{.block = command.block};
  if (fails_ > 0 && random.Below(static_cast<uint64_t>(fails_)) == 0) {
    saved.status = absl::ResourceExhaustedError("the simulated disk is full");
    return saved;
  }
  if (blocks_.contains(hash)) return saved;
  if (static_cast<int64_t>(blocks_.size()) == blocks_max_) {
    saved.removed.push_back(uses_.front());
    Drop(saved.removed.front());
  }
  Stored& stored = blocks_[hash];
  stored.use = uses_.insert(uses_.end(), hash);
  for (int layer = 0; layer < arena.layout().num_layers; ++layer) {
    const auto cell = arena.Block(layer, block);
    stored.bytes.append(reinterpret_cast<const char*>(cell.data()), cell.size());
  }
  saved.bytes = arena.layout().block_bytes();
  return saved;
}

storage::BlocksLoaded SimDisk::Load(const storage::LoadBlocks& command,
                                    const kv::BlockArena& arena) {
  storage::BlocksLoaded loaded{.load = command.load};
  for (const auto& [hash, block] : command.blocks) {
    const auto it = blocks_.find(hash);
    if (it == blocks_.end() || it->second.damaged) {
      Drop(hash);
      loaded.removed.push_back(hash);
      return loaded;
    }
    absl::string_view bytes = it->second.bytes;
    for (int layer = 0; layer < arena.layout().num_layers; ++layer) {
      const auto cell = arena.Block(layer, block);
      std::copy_n(bytes.data(), cell.size(), reinterpret_cast<char*>(cell.data()));
      bytes.remove_prefix(cell.size());
    }
    uses_.splice(uses_.end(), uses_, it->second.use);
    ++loaded.loaded;
    loaded.bytes += arena.layout().block_bytes();
  }
  return loaded;
}

std::optional<storage::StorageEvent> SimDisk::Handle(const storage::StorageCommand& command,
                                                     const kv::BlockArena& arena,
                                                     absl::Duration time, Random& random) {
  if (const auto* save = std::get_if<storage::SaveBlock>(&command)) {
    storage::BlockSaved saved = Save(*save, arena, random);
    saved.time = time;
    return saved;
  }
  if (const auto* load = std::get_if<storage::LoadBlocks>(&command)) {
    storage::BlocksLoaded loaded = Load(*load, arena);
    loaded.time = time;
    return loaded;
  }
  Drop(std::get<storage::ForgetBlock>(command).hash);
  return std::nullopt;
}

}  // namespace tandem::sim
