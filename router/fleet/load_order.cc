#include "router/fleet/load_order.h"

#include "router/fleet/node.h"

namespace tandem::router {

LoadOrder::Place LoadOrder::PlaceOf(const Node& node, uint64_t tie) {
  return {.node = &node,
          .group = node.group(),
          .has_room = node.has_sequence_slot(),
          .load = node.load_score(),
          .blocks = node.blocks_available(),
          .capacity_tokens = node.capacity_tokens(),
          .tie = tie};
}

void LoadOrder::Move(Place& place, const Place& next) {
  const NodeSlot slot = (next.node != nullptr ? next : place).node->slot;
  // `was` and `is`: whether the tree has an entry of the place.
  const auto move = [&](auto& tree, bool was, const auto& from, bool is, const auto& to) {
    if (was == is && from == to) return;
    if (was) tree.erase(from);
    if (is) tree.insert(to);
  };
  for (const NodeGroup group : {kPrefillNodes, kDecodeNodes})
    move(by_load_[group], place.group == group, std::make_tuple(place.load, place.tie, slot),
         next.group == group, std::make_tuple(next.load, next.tie, slot));
  const bool was = place.group == kDecodeNodes, is = next.group == kDecodeNodes;
  if (was != is || place.capacity_tokens != next.capacity_tokens) {
    if (was) capacities_.erase(capacities_.find(place.capacity_tokens));
    if (is) capacities_.insert(next.capacity_tokens);
  }
  if (is)
    by_capacity_.Set(*next.node, {.capacity_tokens = next.capacity_tokens, .blocks = next.blocks});
  else if (was)
    by_capacity_.Remove(*place.node);
  move(by_room_, was && place.has_room, std::make_tuple(-place.blocks, place.tie, slot),
       is && next.has_room, std::make_tuple(-next.blocks, next.tie, slot));
  const bool had_room = was && place.has_room, has_room = is && next.has_room;
  const bool more_room = has_room && (!had_room || next.blocks > place.blocks);
  const bool less_to_do =
      next.group == kPrefillNodes && (place.group != kPrefillNodes || next.load < place.load);
  if (more_room || less_to_do) ++room_grown_;
  place = next;
}

int64_t LoadOrder::UsualCapacityTokens(int64_t prompt_tokens) const {
  const int64_t most = decode_capacity_tokens();
  if (most <= prompt_tokens) return 0;
  return *capacities_.lower_bound(most - (most - prompt_tokens) / 2);
}

void LoadOrder::Update(const Node& node) {
  if (places_.size() <= node.slot) places_.resize(node.slot + 1);
  Place& place = places_[node.slot];
  Move(place, PlaceOf(node, place.node == nullptr ? random_.Next() : place.tie));
}

void LoadOrder::UpdateAndShuffle(const Node& node) {
  if (places_.size() <= node.slot) places_.resize(node.slot + 1);
  Place& place = places_[node.slot];
  Place next = PlaceOf(node, place.tie);
  if (place.node != nullptr && next == place) return;
  next.tie = random_.Next();
  Move(place, next);
}

void LoadOrder::Remove(const Node& node) {
  if (places_[node.slot].node != nullptr) Move(places_[node.slot], {});
}

}  // namespace tandem::router
