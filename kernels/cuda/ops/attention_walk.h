// The work list of one block of a persistent grid: (tile, KV head) pairs, the last tile first,
// because causal tiles grow with their index, and all KV heads of a tile together. Rounds of the
// grid alternate in direction: the block with the longest pair of one round gets the shortest of
// the next. Blocks of one round that share a KV head walk its tokens at about the same time, so the
// L2 serves them. Thread safety: pure functions, the same in all threads of a block.
#pragma once

#include "kernels/api/device_attention.h"
#include "kernels/cuda/ops/attention_work.h"

namespace tandem::kernels::TANDEM_SIMT {

// The position, in the order of all work items, that block `block` of `blocks` takes in a round.
TANDEM_BOTH constexpr int WalkPosition(int round, int block, int blocks) {
  return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

// A list of items whose tiles have tile.vectors vectors each. Up to kTogether neighbours of one
// sequence make one work item; neighbours of different sequences follow one another.
struct AttentionList {
  const AttentionItem* items;
  int count;
  AttentionTile tile;
};

// The work items of this thread's block, one after another; every thread of the block sees the same
// ones.
template <int kTogether>
class AttentionWalk {
 public:
  static_assert(kTogether == 1 || kTogether == 2);

  TANDEM_DEVICE explicit AttentionWalk(const AttentionList& list) : list_(list) {}

  // Moves on to the next work item. False: there is none.
  TANDEM_DEVICE bool Next(const DeviceAttentionArgs& args, AttentionWork* work) {
    if (alone_next_) {
      alone_next_ = false;
      *work = AttentionWork::Of(args, list_.items[first_ + 1], kv_head_, list_.tile);
      return true;
    }
    if (!NextPlace(args.layer.shape.num_kv_heads)) return false;
    AttentionItem item = list_.items[first_];
    AttentionTile tile = list_.tile;
    if (kTogether == 2 && first_ + 1 < list_.count) {
      const AttentionItem& second = list_.items[first_ + 1];
      if (second.first_row == item.first_row &&
          second.first_vector == item.first_vector + tile.vectors) {
        tile.vectors *= 2;
        item.end_partition = second.end_partition;
      } else {
        alone_next_ = true;
      }
    }
    *work = AttentionWork::Of(args, item, kv_head_, tile);
    return true;
  }

 private:
  TANDEM_DEVICE bool NextPlace(int kv_heads) {
    const int tiles = (list_.count + kTogether - 1) / kTogether;
    for (; round_ * GridX() < tiles * kv_heads; ++round_) {
      const int position = WalkPosition(round_, BlockX(), GridX());
      if (position >= tiles * kv_heads) continue;
      kv_head_ = position % kv_heads;
      first_ = (tiles - 1 - position / kv_heads) * kTogether;
      ++round_;
      return true;
    }
    return false;
  }

  const AttentionList list_;
  int round_ = 0;
  int kv_head_ = 0;
  int first_ = 0;            // attention item of the current work item
  bool alone_next_ = false;  // the item after it is the next work item
};

}  // namespace tandem::kernels::TANDEM_SIMT
