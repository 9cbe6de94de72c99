#include "router/fleet/load_order.h"

#include "router/fleet/fleet.h"

namespace tandem::router {

void LoadOrder::Enter(const Place& place) {
  if (place.group == kNoGroup) return;
  const NodeSlot slot = place.node->slot;
  by_load_[place.group].emplace(place.load, place.tie, slot);
  if (place.group != kDecodeNodes) return;
  by_capacity_.emplace(-place.capacity_tokens, slot);
  if (place.has_room) by_room_.emplace(-place.blocks, place.tie, slot);
}

void LoadOrder::Leave(const Place& place) {
  if (place.group == kNoGroup) return;
  const NodeSlot slot = place.node->slot;
  by_load_[place.group].erase({place.load, place.tie, slot});
  if (place.group != kDecodeNodes) return;
  by_capacity_.erase({-place.capacity_tokens, slot});
  if (place.has_room) by_room_.erase({-place.blocks, place.tie, slot});
}

void LoadOrder::Update(const Node& node) {
  if (places_.size() <= node.slot) places_.resize(node.slot + 1);
  Place& place = places_[node.slot];
  Place next = place;
  next.node = &node;
  next.group = node.group();
  next.load = node.load_score();
  next.blocks = node.blocks_available();
  next.capacity_tokens = node.capacity_tokens();
  next.has_room = node.has_sequence_slot();
  if (place.node == nullptr) next.tie = random_.Next();
  Leave(place);
  place = next;
  Enter(place);
}

void LoadOrder::UpdateAndShuffle(const Node& node) {
  Update(node);
  Place& place = places_[node.slot];
  Leave(place);
  place.tie = random_.Next();
  Enter(place);
}

void LoadOrder::Remove(const Node& node) {
  Leave(places_[node.slot]);
  places_[node.slot] = {};
}

}  // namespace tandem::router
