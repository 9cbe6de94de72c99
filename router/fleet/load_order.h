// The nodes that take new work, in the orders that placement looks for them: prefill nodes and
// decode nodes by load, decode nodes by free room, and by what they can hold at most
// (router/fleet/room_tree.h). The fleet updates a node's place whenever its load changes, so
// placement never looks at all nodes.
//
// Nodes of equal load are in random order; a node's place is drawn anew with each load report that
// changes its load. Otherwise all requests that arrive between two reports would see the same few
// nodes first. A report that changes nothing costs no update.
//
// Thread safety: none; the Fleet owns it.
// Invariants: a node is in the order of its group and in no other; the orders depend on the calls
// and on `random` alone.
// Cost of an update: up to three removals and insertions in trees of the fleet's size, about 0.5 us
// at 1,000 nodes.
#pragma once

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/functional/function_ref.h"
#include "common/runtime/random.h"
#include "router/fleet/node_slot.h"
#include "router/fleet/room_tree.h"

namespace tandem::router {

struct Node;

class LoadOrder {
 public:
  // `random` outlives this.
  explicit LoadOrder(Random& random) : random_(random) {}

  // The node joined, or a figure of its load, or whether it drains, may have changed. The node
  // outlives its place here.
  void Update(const Node& node);
  // As Update, for a load report: also draws the node's place among its equals anew, if its load
  // has changed.
  void UpdateAndShuffle(const Node& node);
  void Remove(const Node& node);

  // Calls visit(const Node&) for the nodes of a group, least loaded first, until it returns false.
  template <typename Visit>
  void VisitByLoad(NodeGroup group, Visit visit) const {
    for (const auto& [load, tie, slot] : by_load_[group])
      if (!visit(*positions_[slot].node)) return;
  }
  // The same for decode nodes that have a sequence slot, most free blocks first.
  template <typename Visit>
  void VisitByRoom(Visit visit) const {
    for (const auto& [taken, tie, slot] : by_room_)
      if (!visit(*positions_[slot].node)) return;
  }
  // Rises when a node joins, when a decode node comes to have more room, and when a prefill node
  // comes to have less to do: a leg that found no place may find one now.
  uint64_t room_grown() const { return room_grown_; }
  size_t size(NodeGroup group) const { return by_load_[group].size(); }
  // The longest sequence that a decode node of the order can ever hold, in tokens; 0 without one.
  int64_t decode_capacity_tokens() const { return by_capacity_.capacity_tokens_max(); }
  // The longest sequence that a request of `prompt_tokens` gets if it sets no limit itself: what
  // each node can hold that has room for at least half as long an answer as the largest one. So
  // nodes of about equal size are equal for it. 0 if none has room for a token of the answer.
  int64_t UsualCapacityTokens(int64_t prompt_tokens) const;
  // As RoomTree::Best, of the order's decode nodes, with a sequence slot or without.
  const Node* DecodeNodeWithMostRoom(int64_t capacity_tokens,
                                     absl::FunctionRef<bool(const Node*)> excluded) const {
    return by_capacity_.Best(capacity_tokens, excluded);
  }

 private:
  struct Position {
    const Node* node = nullptr;
    NodeGroup group = kNoGroup;
    bool has_room = false;
    double load = 0;
    int64_t blocks = 0;
    int64_t capacity_tokens = 0;
    uint64_t tie = 0;
    friend bool operator==(const Position&, const Position&) = default;
  };
  // Where the node belongs, at `tie` among its equals.
  static Position PositionOf(const Node& node, uint64_t tie);
  // Changes the node's entry in those trees alone where it differs. Either may be without a node.
  void Move(Position& position, const Position& next);

  Random& random_;
  // Bound: the fleet's slots, for all.
  std::vector<Position> positions_;
  uint64_t room_grown_ = 0;
  std::array<absl::btree_set<std::tuple<double, uint64_t, NodeSlot>>, kNodeGroups> by_load_;
  absl::btree_set<std::tuple<int64_t, uint64_t, NodeSlot>> by_room_;  // by blocks, negated
  RoomTree by_capacity_;                                              // of decode nodes
  // Likewise. Bound: their number.
  absl::btree_multiset<int64_t> capacities_;
};

}  // namespace tandem::router
