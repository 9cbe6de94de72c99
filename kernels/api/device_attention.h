// Causal grouped-query attention over the paged cache on a device: one operator for prompt and
// generated rows. kernels/api/attention_schedule.h cuts a batch into the items here;
// DeviceOps::attention enqueues them. Numerics: partitions of 256 tokens, merged in index order, so
// the schedule changes no bit (kernels/api/attention.h has the formula). Unlike the CPU's classes,
// devices fold all partitions in one level, without groups (docs/adr/0071).
//
// On Hopper and later the operator begins before the kernels enqueued before it have ended
// (docs/adr/0078). So the schedule, the tables, and K and V of tokens before an item's
// first_position were written before the last copy on the stream, as a step's are.
//
// All pointers are device memory, except where a comment says otherwise; the caller owns that
// memory and keeps it unchanged until the enqueued work is done. Thread safety: the stream's.
// Errors: the stream's status; a broken REQUIRES ends the process.
#pragma once

#include <cstdint>

#include "kernels/api/bf16.h"
#include "kernels/api/kv_cache.h"

namespace tandem::kernels {

// Head sizes that attention and RoPE have kernels for.
constexpr bool IsDeviceHeadDim(int32_t head_dim) {
  return head_dim == 16 || head_dim == 32 || head_dim == 64 || head_dim == 128 || head_dim == 256;
}

// The part of a batch's attention that one warp (narrow) or one block (wide) computes.
struct AttentionItem {
  int32_t first_row = 0;        // the sequence's first row in the batch
  int32_t num_rows = 0;         // the sequence's rows in the batch
  int32_t first_position = 0;   // absolute position of first_row
  int32_t first_vector = 0;     // first packed query vector, counted among the sequence's rows
  int32_t table_offset = 0;     // where the sequence's block table begins in `tables`
  int32_t first_partition = 0;  // partitions of 256 tokens [first_partition, end_partition)
  int32_t end_partition = 0;
  int32_t first_record = -1;  // first_partition's first record; −1: the item covers its tile alone
};
// A sequence whose partitions were split among items. Its records merge in index order. The record
// of partition i (counted from the first that was recorded) and row r of the sequence is
// first_record + i · num_rows + r.
struct AttentionMerge {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_record = 0;
  int32_t num_partitions = 0;
};
// How many of each there are. In device memory, so that a captured graph reads the counts at each
// replay.
struct AttentionCounts {
  int32_t narrow_items = 0;  // tiles of 16 query vectors, a warp each
  int32_t wide_items = 0;    // tiles of 64 query vectors, a block each
  int32_t merges = 0;
};

struct DeviceAttentionArgs {
  const Bf16Bits* q = nullptr;  // [rows][num_heads · head_dim]
  int32_t num_heads = 0;
  float scale = 0;                  // of scores, positive
  int32_t sliding_window = 0;       // 0 = all
  KvLayer layer;                    // a device head_dim; bf16, int8 or fp8
  const int32_t* tables = nullptr;  // block tables, one after the other
  const AttentionItem* narrow_items = nullptr;
  const AttentionItem* wide_items = nullptr;
  const AttentionMerge* merges = nullptr;
  const AttentionCounts* counts = nullptr;
  int32_t multiprocessors = 1;  // the device's; bounds the blocks of a persistent grid
  // Host-side upper bounds of `counts`, which size the grids. A kernel whose bound is 0 is not
  // launched.
  AttentionCounts launch;
  // [records][num_heads][head_dim + 2], for split tiles: m, l and o of a row over a partition, laid
  // out as kernels/api/attention_partials.h says; m is a base-2 logarithm.
  float* records = nullptr;
  Bf16Bits* out = nullptr;  // [rows][num_heads · head_dim]
};

}  // namespace tandem::kernels
