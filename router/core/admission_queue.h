// The sequences that wait for placement, in the order in which they are tried. Priority counts as
// time: a level is worth a fixed wait, so every sequence grows more urgent while it waits, and all
// waits are bounded. The order never changes while sequences wait, because all of them age alike.
//
// A sequence that finds no room blocks only those that need the same room. Younger sequences that
// need less are still tried. Once it has waited for long, one decode node is kept for it: nothing
// younger is placed there, until what runs there has made enough room. So small sequences cannot
// starve it, and go on elsewhere.
//
// Thread safety: none; RequestTable owns it.
// Invariants: each sequence is in it at most once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "router/core/serial.h"
#include "router/placement/pair_placement.h"

namespace tandem::router {

class AdmissionQueue {
 public:
  // Placements that find no room in one walk; then the walk ends.
  static constexpr int kFailedMax = 8;
  // Sequences looked at in one walk.
  static constexpr int kVisitedMax = 1024;
  // Placements tried in one walk.
  static constexpr int kTriedMax = 256;
  // After waiting this long for room, a sequence has a node kept for it.
  static constexpr absl::Duration kKeepRoomAfter = absl::Seconds(1);
  // Sequences for which nodes are kept in one walk.
  static constexpr int kKeptMax = 16;

  // A sequence's place in the line; the lowest is tried first.
  struct Place {
    absl::Time rank;
    Serial serial = 0;
    friend bool operator<(const Place& a, const Place& b) {
      return std::pair(a.rank, a.serial) < std::pair(b.rank, b.serial);
    }
  };
  // The rank of a request that arrived at `arrived`. `level`: what one level of priority is worth;
  // `most`: what all levels together are worth at most, so that a newcomer passes no sequence that
  // is older by more than twice that.
  static absl::Time RankOf(absl::Time arrived, int32_t priority, absl::Duration level,
                           absl::Duration most);

  // The result of trying to place a sequence: why it stays queued (nullopt: it was placed, or has
  // failed), and how long it has waited.
  struct Attempt {
    std::optional<PlacementFailure> failure;
    absl::Duration waited;
  };
  // What the walk asks of the sequences' owner.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Tokens that a node must have room for; 0 for a sequence that shares another's blocks, which
    // is tried whatever others found.
    virtual int64_t TokensNeeded(Serial serial) = 0;
    virtual Attempt TryToPlace(Serial serial) = 0;
    // The sequence was placed and has left the queue. May change the queue.
    virtual void OnPlaced(Serial serial) = 0;
    // Keeps a node's room from the sequences that are tried after this one in this walk.
    virtual void KeepRoomFor(Serial serial) = 0;
  };

  void Insert(const Place& place) { queue_.insert(place); }
  // Does nothing for a sequence that is not in the queue.
  void Erase(const Place& place) { queue_.erase(place); }
  bool Contains(const Place& place) const { return queue_.contains(place); }
  size_t size() const { return queue_.size(); }

  // Walks the queue and tries to place its sequences, up to the bounds above.
  void PlaceAll(Owner& owner);

 private:
  // What one walk has found so far.
  struct Walk {
    int visited = 0, tried = 0, failed = 0, kept = 0;
    // The least room that was looked for in vain.
    int64_t no_room_for = std::numeric_limits<int64_t>::max();
    bool over = false;
  };
  // Tries one sequence; true: it was placed.
  bool Try(Serial serial, Owner& owner, Walk& walk);

  // Bound: --queue-max.
  absl::btree_set<Place> queue_;
};

}  // namespace tandem::router
