#include "router/fleet/load_order.h"

#include "router/fleet/node.h"

namespace tandem::router {

LoadOrder::Position LoadOrder::PositionOf(const Node& node, uint64_t tie) {
  return {.node = &node,
          .group = node.group(),
          .has_room = node.has_sequence_slot(),
          .load = node.load_score(),
          .blocks = node.blocks_available(),
          .capacity_tokens = node.capacity_tokens(),
          .tie = tie};
}

void LoadOrder::Move(Position& position, const Position& next) {
  const NodeSlot slot = (next.node != nullptr ? next : position).node->slot;
  // `was` and `is`: whether the tree has an entry of the position.
  const auto move = [&](auto& tree, bool was, const auto& from, bool is, const auto& to) {
    if (was == is && from == to) return;
    if (was) tree.erase(from);
    if (is) tree.insert(to);
  };
  for (const NodeGroup group : {kPrefillNodes, kDecodeNodes})
    move(by_load_[group], position.group == group,
         std::make_tuple(position.load, position.tie, slot), next.group == group,
         std::make_tuple(next.load, next.tie, slot));
  const bool was = position.group == kDecodeNodes, is = next.group == kDecodeNodes;
  if (was != is || position.capacity_tokens != next.capacity_tokens) {
    if (was) capacities_.erase(capacities_.find(position.capacity_tokens));
    if (is) capacities_.insert(next.capacity_tokens);
  }
  if (is)
    by_capacity_.Set(*next.node, {.capacity_tokens = next.capacity_tokens, .blocks = next.blocks});
  else if (was)
    by_capacity_.Remove(*position.node);
  move(by_room_, was && position.has_room, std::make_tuple(-position.blocks, position.tie, slot),
       is && next.has_room, std::make_tuple(-next.blocks, next.tie, slot));
  const bool had_room = was && position.has_room, has_room = is && next.has_room;
  const bool more_room = has_room && (!had_room || next.blocks > position.blocks);
  const bool less_to_do =
      next.group == kPrefillNodes && (position.group != kPrefillNodes || next.load < position.load);
  if (more_room || less_to_do) ++room_grown_;
  position = next;
}

int64_t LoadOrder::UsualCapacityTokens(int64_t prompt_tokens) const {
  const int64_t most = decode_capacity_tokens();
  if (most <= prompt_tokens) return 0;
  return *capacities_.lower_bound(most - (most - prompt_tokens) / 2);
}

void LoadOrder::Update(const Node& node) {
  if (positions_.size() <= node.slot) positions_.resize(node.slot + 1);
  Position& position = positions_[node.slot];
  Move(position, PositionOf(node, position.node == nullptr ? random_.Next() : position.tie));
}

void LoadOrder::UpdateAndShuffle(const Node& node) {
  if (positions_.size() <= node.slot) positions_.resize(node.slot + 1);
  Position& position = positions_[node.slot];
  Position next = PositionOf(node, position.tie);
  if (position.node != nullptr && next == position) return;
  next.tie = random_.Next();
  Move(position, next);
}

void LoadOrder::Remove(const Node& node) {
  if (positions_[node.slot].node != nullptr) Move(positions_[node.slot], {});
}

}  // namespace tandem::router
