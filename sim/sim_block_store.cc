#include "sim/sim_block_store.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/string_view.h"

namespace tandem::sim {

absl::Status SimBlockStore::Save(const kv::BlockHash& hash, const kv::BlockHash& parent,
                                 absl::Span<const absl::Span<const std::byte>> pieces,
                                 std::vector<kv::BlockHash>& removed) {
  if (fails_ > 0 && random_.Below(static_cast<uint64_t>(fails_)) == 0)
    return absl::ResourceExhaustedError("the simulated disk is full");
  if (Contains(hash)) return absl::OkStatus();
  if (size() == blocks_max_) {
    const std::optional<kv::BlockHash> goes = order_.ToRemoveFor(parent);
    if (!goes.has_value()) return absl::OkStatus();
    removed.push_back(*goes);
    Forget(*goes);
  }
  Stored& stored = blocks_[hash];
  order_.Add(hash, parent);
  for (const absl::Span<const std::byte> piece : pieces)
    stored.bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return absl::OkStatus();
}

absl::Status SimBlockStore::Load(const kv::BlockHash& hash,
                                 absl::Span<const absl::Span<std::byte>> pieces) {
  const auto it = blocks_.find(hash);
  if (it == blocks_.end()) return absl::NotFoundError("the block is not stored");
  if (it->second.damaged) {
    Forget(hash);
    return absl::DataLossError("a stored block is damaged");
  }
  absl::string_view bytes = it->second.bytes;
  for (const absl::Span<std::byte> piece : pieces) {
    std::copy_n(bytes.data(), piece.size(), reinterpret_cast<char*>(piece.data()));
    bytes.remove_prefix(piece.size());
  }
  Touch(hash);
  return absl::OkStatus();
}

void SimBlockStore::Forget(const kv::BlockHash& hash) {
  const auto it = blocks_.find(hash);
  if (it == blocks_.end()) return;
  order_.Remove(hash);
  blocks_.erase(it);
}

bool SimBlockStore::Damage() {
  if (blocks_.empty()) return false;
  std::next(blocks_.begin(), static_cast<int64_t>(random_.Below(blocks_.size())))->second.damaged =
      true;
  return true;
}

void SimBlockStore::Clear() {
  blocks_.clear();
  order_ = {};
}

}  // namespace tandem::sim
