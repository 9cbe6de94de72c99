#include "router/fleet/room_tree.h"

#include "router/fleet/node.h"

namespace tandem::router {
namespace {

// Spreads the slots, so that the tree's shape has nothing to do with the order of their capacities.
uint32_t PriorityOf(NodeSlot slot) {
  uint64_t x = (uint64_t{slot} + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  return static_cast<uint32_t>(x >> 32);
}

}  // namespace

bool RoomTree::Less(NodeSlot a, NodeSlot b) const {
  const int64_t capacity = entries_[a].figures.capacity_tokens;
  const int64_t other = entries_[b].figures.capacity_tokens;
  return capacity != other ? capacity < other : a < b;
}

NodeSlot RoomTree::Better(NodeSlot a, NodeSlot b) const {
  if (a == kNone || b == kNone) return a == kNone ? b : a;
  const Entry &first = entries_[a], &second = entries_[b];
  if (first.figures.blocks != second.figures.blocks)
    return first.figures.blocks > second.figures.blocks ? a : b;
  return first.node->id < second.node->id ? a : b;
}

void RoomTree::SetBest(NodeSlot slot) {
  Entry& entry = entries_[slot];
  entry.best = slot;
  for (const NodeSlot below : {entry.left, entry.right})
    if (below != kNone) entry.best = Better(entry.best, entries_[below].best);
}

RoomTree::Parts RoomTree::Split(NodeSlot root, NodeSlot at) {
  if (root == kNone) return {kNone, kNone};
  const bool less = Less(root, at);
  NodeSlot& inner = less ? entries_[root].right : entries_[root].left;
  const Parts parts = Split(inner, at);
  inner = less ? parts.less : parts.more;
  SetBest(root);
  return less ? Parts{root, parts.more} : Parts{parts.less, root};
}

NodeSlot RoomTree::Merge(NodeSlot less, NodeSlot more) {
  if (less == kNone || more == kNone) return less == kNone ? more : less;
  const bool less_above = entries_[less].priority >= entries_[more].priority;
  const NodeSlot root = less_above ? less : more;
  if (less_above)
    entries_[less].right = Merge(entries_[less].right, more);
  else
    entries_[more].left = Merge(less, entries_[more].left);
  SetBest(root);
  return root;
}

NodeSlot RoomTree::Insert(NodeSlot root, NodeSlot slot) {
  if (root == kNone || entries_[slot].priority > entries_[root].priority) {
    const Parts parts = Split(root, slot);
    entries_[slot].left = parts.less;
    entries_[slot].right = parts.more;
    SetBest(slot);
    return slot;
  }
  NodeSlot& below = Less(slot, root) ? entries_[root].left : entries_[root].right;
  below = Insert(below, slot);
  SetBest(root);
  return root;
}

NodeSlot RoomTree::Erase(NodeSlot root, NodeSlot slot) {
  if (root == slot) return Merge(entries_[slot].left, entries_[slot].right);
  NodeSlot& below = Less(slot, root) ? entries_[root].left : entries_[root].right;
  below = Erase(below, slot);
  SetBest(root);
  return root;
}

void RoomTree::Refresh(NodeSlot root, NodeSlot slot) {
  if (root != slot) Refresh(Less(slot, root) ? entries_[root].left : entries_[root].right, slot);
  SetBest(root);
}

void RoomTree::Set(const Node& node, const Figures& figures) {
  if (entries_.size() <= node.slot) entries_.resize(node.slot + 1);
  Entry& entry = entries_[node.slot];
  if (entry.node != nullptr && entry.figures == figures) return;
  const bool moves =
      entry.node == nullptr || entry.figures.capacity_tokens != figures.capacity_tokens;
  if (moves) Remove(node);
  entry.node = &node;
  entry.figures = figures;
  entry.priority = PriorityOf(node.slot);
  if (moves)
    root_ = Insert(root_, node.slot);
  else
    Refresh(root_, node.slot);
}

void RoomTree::Remove(const Node& node) {
  if (node.slot >= entries_.size() || entries_[node.slot].node == nullptr) return;
  root_ = Erase(root_, node.slot);
  entries_[node.slot] = {};
}

NodeSlot RoomTree::BestBelow(NodeSlot root, absl::FunctionRef<bool(const Node*)> excluded) const {
  if (root == kNone) return kNone;
  const Entry& entry = entries_[root];
  if (!excluded(entries_[entry.best].node)) return entry.best;
  const NodeSlot own = entry.best == root || excluded(entry.node) ? kNone : root;
  return Better(own, Better(BestBelow(entry.left, excluded), BestBelow(entry.right, excluded)));
}

const Node* RoomTree::Best(int64_t capacity_tokens,
                           absl::FunctionRef<bool(const Node*)> excluded) const {
  NodeSlot best = kNone;
  for (NodeSlot at = root_; at != kNone;) {
    const Entry& entry = entries_[at];
    if (entry.figures.capacity_tokens < capacity_tokens) {
      at = entry.right;
      continue;
    }
    if (!excluded(entry.node)) best = Better(best, at);
    best = Better(best, BestBelow(entry.right, excluded));
    at = entry.left;
  }
  return best == kNone ? nullptr : entries_[best].node;
}

int64_t RoomTree::capacity_tokens_max() const {
  int64_t most = 0;
  for (NodeSlot at = root_; at != kNone; at = entries_[at].right)
    most = entries_[at].figures.capacity_tokens;
  return most;
}

}  // namespace tandem::router
