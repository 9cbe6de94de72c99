// The sending or the receiving ends of shortcuts past a transport, one for each peer that has one:
// mapped arenas (mapped_transport.h) and NCCL's channels (nccl_transport.h). An end may be the
// caller of what ends it, so an ended one lives on until the next Progress().
// Thread safety: none; the transfer thread. Owner: the transport.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "common/transfer/kv_transport.h"

namespace tandem::transfer {

// `End` has `bool open() const`, and `bool Progress()`, which may end any connection, its own
// included.
template <typename End>
class EndsByPeer {
 public:
  // Null without one.
  End* Find(PeerId peer) const {
    const auto it = ends_.find(peer);
    return it == ends_.end() ? nullptr : it->second.get();
  }
  bool IsOpen(PeerId peer) const {
    const End* const end = Find(peer);
    return end != nullptr && end->open();
  }
  // REQUIRES: the peer has none.
  End& Add(PeerId peer, std::unique_ptr<End> end) {
    return *ends_.try_emplace(peer, std::move(end)).first->second;
  }
  // Forgets the peer's end and returns it, alive until the next Progress(); null without one.
  End* Remove(PeerId peer) {
    const auto it = ends_.find(peer);
    if (it == ends_.end()) return nullptr;
    removed_.push_back(std::move(it->second));
    ends_.erase(it);
    return removed_.back().get();
  }
  // Destroys the removed ends and calls Progress() of the others; says whether anything happened.
  bool Progress() {
    removed_.clear();
    bool moved = false;
    // By key: Progress() of one may remove any.
    for (auto it = ends_.begin(); it != ends_.end();) {
      const PeerId peer = it->first;
      moved = it->second->Progress() || moved;
      it = ends_.upper_bound(peer);
    }
    return moved;
  }
  // How many there are, and of how many `is` holds.
  int size() const { return static_cast<int>(ends_.size()); }
  int Count(absl::FunctionRef<bool(const End&)> is) const {
    int count = 0;
    for (const auto& [peer, end] : ends_) count += is(*end) ? 1 : 0;
    return count;
  }
  void ForEach(absl::FunctionRef<void(End&)> call) {
    for (auto& [peer, end] : ends_) call(*end);
  }

 private:
  // Bound: the connections of the transport beneath.
  absl::btree_map<PeerId, std::unique_ptr<End>> ends_;
  // Bound: what was removed since the last Progress().
  std::vector<std::unique_ptr<End>> removed_;
};

}  // namespace tandem::transfer
