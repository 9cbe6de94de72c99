// The decode nodes that take work, by the longest sequence that each can ever hold, with the node
// that has most free blocks found in any part of that order. So the node whose room is to be kept
// for a sequence is found without a look at all nodes.
//
// A treap: a search tree by capacity whose shape depends on a hash of the slots. Each inner entry
// knows the best node below it.
//
// Thread safety: none; a LoadOrder owns it.
// Invariants: what Best returns depends on the nodes and their figures alone, not on the calls that
// brought them here.
// Cost of Set and Remove: O(log n).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "router/fleet/node_slot.h"

namespace tandem::router {

struct Node;

class RoomTree {
 public:
  struct Figures {
    int64_t capacity_tokens = 0;
    int64_t blocks = 0;  // that a new leg can get now
    friend bool operator==(const Figures&, const Figures&) = default;
  };

  // Adds the node, or changes its figures. The node outlives its entry here.
  void Set(const Node& node, const Figures& figures);
  // Does nothing for a node that is not here.
  void Remove(const Node& node);

  // The node with the most free blocks of those that can hold `capacity_tokens` and are not
  // `excluded`; of equal ones that with the lowest node id. nullptr if there is none.
  // Cost: O(log n) for each excluded node, and once more.
  const Node* Best(int64_t capacity_tokens, absl::FunctionRef<bool(const Node*)> excluded) const;
  // The most that one of the nodes can hold; 0 without a node. O(log n).
  int64_t capacity_tokens_max() const;

 private:
  static constexpr NodeSlot kNone = std::numeric_limits<NodeSlot>::max();
  struct Entry {
    const Node* node = nullptr;  // nullptr: not in the tree
    Figures figures;
    uint32_t priority = 0;  // at least that of the entries below
    NodeSlot left = kNone, right = kNone;
    NodeSlot best = kNone;  // of this entry and all below
  };
  struct Parts {
    NodeSlot less, more;
  };

  // Whether entry `a` comes before `b`: by capacity, then by slot.
  bool Less(NodeSlot a, NodeSlot b) const;
  // The one with more free blocks. Either may be kNone.
  NodeSlot Better(NodeSlot a, NodeSlot b) const;
  // These take and return the root of a tree; kNone is an empty one.
  NodeSlot Insert(NodeSlot root, NodeSlot slot);
  NodeSlot Erase(NodeSlot root, NodeSlot slot);
  NodeSlot Merge(NodeSlot less, NodeSlot more);
  Parts Split(NodeSlot root, NodeSlot at);
  // The entry's blocks have changed: brings those above it up to date.
  void Refresh(NodeSlot root, NodeSlot slot);
  void SetBest(NodeSlot slot);
  NodeSlot BestBelow(NodeSlot root, absl::FunctionRef<bool(const Node*)> excluded) const;

  // By slot. Bound: the fleet's slots.
  std::vector<Entry> entries_;
  NodeSlot root_ = kNone;
};

}  // namespace tandem::router
