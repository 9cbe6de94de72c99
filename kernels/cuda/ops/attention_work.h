// One attention item as a kernel works on it: which query vectors its tile has, which tokens they
// attend to, and which sub-tiles of tokens that takes. All threads of a block compute the same
// values, and every kernel that walks the schedule uses this code. Thread safety: pure functions
// and values.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/api/device_attention.h"
#include "kernels/cuda/simt/simt.h"

namespace tandem::kernels::TANDEM_SIMT {

// The tokens a query vector attends to: [begin, end).
struct TokenRange {
  int begin, end;

  // Whether it has all of tokens [first, first + count).
  TANDEM_DEVICE bool Has(int first, int count) const {
    return first >= begin && first + count <= end;
  }
};

// A kernel's tile: query vectors of an item, and the tokens of one sub-tile.
struct AttentionTile {
  int vectors, tokens;
};

struct AttentionWork {
  AttentionItem item;
  int kv_head;
  int heads_per_kv;
  int sliding_window;
  int end_vector;   // one beyond the last packed vector of the tile that there is
  int begin_token;  // lowest that any vector of the tile attends to
  int end_token;    // one beyond the highest
  int first_sub_tile, end_sub_tile;

  TANDEM_DEVICE static AttentionWork Of(const DeviceAttentionArgs& args, const AttentionItem& item,
                                        int kv_head, AttentionTile tile) {
    AttentionWork work;
    work.item = item;
    work.kv_head = kv_head;
    work.heads_per_kv = args.num_heads / args.layer.shape.num_kv_heads;
    work.sliding_window = args.sliding_window;
    work.end_vector = item.num_rows * work.heads_per_kv;
    if (work.end_vector > item.first_vector + tile.vectors) {
      work.end_vector = item.first_vector + tile.vectors;
    }
    work.begin_token = work.RangeOf(item.first_vector).begin;
    work.end_token = work.RangeOf(work.end_vector - 1).end;
    const int begin = item.first_partition * kPartitionTokens;
    const int end = item.end_partition * kPartitionTokens;
    if (work.begin_token < begin) work.begin_token = begin;
    if (work.end_token > end) work.end_token = end;
    work.first_sub_tile = work.begin_token / tile.tokens;
    work.end_sub_tile = (work.end_token + tile.tokens - 1) / tile.tokens;
    return work;
  }

  // The same for the tile's vectors from `skipped` on only, if there are any.
  TANDEM_DEVICE AttentionWork PartOf(const DeviceAttentionArgs& args, int skipped,
                                     AttentionTile tile) const {
    AttentionItem part = item;
    part.first_vector += skipped;
    if (part.first_vector < end_vector) return Of(args, part, kv_head, tile);
    AttentionWork none = *this;
    none.end_sub_tile = first_sub_tile;
    return none;
  }

  // The tokens that some vector attends to lie there.
  TANDEM_DEVICE TokenRange Attended() const { return {begin_token, end_token}; }

  // Empty for a vector beyond the sequence's last.
  TANDEM_DEVICE TokenRange RangeOf(int vector) const {
    if (vector >= end_vector) return {0, 0};
    const int position = item.first_position + vector / heads_per_kv;
    const bool cut = sliding_window > 0 && position + 1 > sliding_window;
    return {cut ? position + 1 - sliding_window : 0, position + 1};
  }

  // The records over `partition` of the item's rows and all heads: m, then l, then o[head_dim]
  // each. REQUIRES: the item has records.
  TANDEM_DEVICE float* RecordsOf(const DeviceAttentionArgs& args, int partition) const {
    const int record = item.first_record + (partition - item.first_partition) * item.num_rows;
    return args.records + int64_t{record} * args.num_heads * (args.layer.shape.head_dim + 2);
  }
  // Which of these records is a vector's. REQUIRES: vector < end_vector.
  TANDEM_DEVICE int PlaceOfRecord(const DeviceAttentionArgs& args, int vector) const {
    return vector / heads_per_kv * args.num_heads + kv_head * heads_per_kv + vector % heads_per_kv;
  }

  // Row of q (and of out) of a vector: an index of head_dim elements.
  TANDEM_DEVICE int64_t RowOf(const DeviceAttentionArgs& args, int vector) const {
    const int64_t row = item.first_row + vector / heads_per_kv;
    return row * args.num_heads + kv_head * heads_per_kv + vector % heads_per_kv;
  }
};

}  // namespace tandem::kernels::TANDEM_SIMT
