// How a product over packed panels of weights is divided into tasks. Tasks divide rows and features
// into blocks of rows and panels, and never divide k, so no division changes a bit.
//   few rows:  a task takes one panel and all rows; the panel is read from memory once.
//   many rows: a task takes a few blocks of rows and as many panels as stay in L2; a block of x
//              stays in L1 while the panels pass.
// Thread safety: pure functions.
#pragma once

#include "kernels/api/gemm.h"
#include "kernels/cpu/v16.h"

namespace tandem::kernels::TANDEM_ISA {

inline constexpr int64_t kLanes = 16;
// Output features of a panel.
inline constexpr int64_t kPanel = 32;
// How many bytes ahead of their use a tile prefetches weights.
inline constexpr int64_t kPrefetchBytes = 4096;
// The most bytes of a panel that a step of a tile reads.
inline constexpr int64_t kLinePair = 128;

TANDEM_INLINE int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
TANDEM_INLINE int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

// A kernel's tile sizes, from which the plan follows.
struct PlanShape {
  int64_t rows_max;     // of a tile
  int64_t panel_bytes;  // of one panel of weights
  int64_t few_blocks;   // up to this many blocks of rows a task takes them all and one panel
  int64_t task_blocks;  // blocks of rows that one task carries otherwise
};

struct Plan {
  int64_t rows, row_blocks;  // blocks of nearly equal size
  int64_t panels, panel_bytes;
  int64_t task_blocks, task_panels;
  int64_t block_tasks, panel_tasks;

  TANDEM_INLINE int64_t Begin(int64_t block) const { return rows * block / row_blocks; }
  TANDEM_INLINE int64_t Rows(int64_t block) const { return Begin(block + 1) - Begin(block); }
  TANDEM_INLINE int64_t tasks() const { return block_tasks * panel_tasks; }
};

TANDEM_INLINE Plan MakePlan(const GemmArgs& args, const PlanShape& shape) {
  // Bytes of weights that a task rereads from L2: about half of the 1 MB that a Zen 4 core has.
  constexpr int64_t kChunkBytes = 480 << 10;
  Plan plan = {};
  plan.rows = args.rows;
  plan.row_blocks = CeilDiv(args.rows, shape.rows_max);
  plan.panels = CeilDiv(args.w.shape.n, kPanel);
  plan.panel_bytes = shape.panel_bytes;
  if (plan.row_blocks <= shape.few_blocks) {
    plan.task_blocks = plan.row_blocks;
    plan.task_panels = 1;
  } else {
    plan.task_blocks = shape.task_blocks;
    const int64_t fitting = kChunkBytes / plan.panel_bytes;
    plan.task_panels = fitting < 1 ? 1 : fitting;
    // Use ranges of equal size, so that the last one is not narrow.
    plan.task_panels = CeilDiv(plan.panels, CeilDiv(plan.panels, plan.task_panels));
  }
  plan.block_tasks = CeilDiv(plan.row_blocks, plan.task_blocks);
  plan.panel_tasks = CeilDiv(plan.panels, plan.task_panels);
  return plan;
}

// What a tile prefetches into L2 while it reads its panel: `step` bytes, from `first` on, for each
// kLinePair of the panel.
struct Ahead {
  const char* first;
  int64_t step;

  // The next address to prefetch after the tile has read `read` bytes of the panel.
  TANDEM_INLINE const char* At(int64_t read) const { return first + read / kLinePair * step; }
};

TANDEM_INLINE void FetchLinePair(const char* p) {
  _mm_prefetch(p, _MM_HINT_T1);
  _mm_prefetch(p + 64, _MM_HINT_T1);
}

// What block `block` prefetches at panel `w`. With many blocks of rows, or one, it is what lies a
// little further in the panel. With few, it is the block's share of the next panel, which its
// worker will probably take next.
TANDEM_INLINE Ahead AheadOf(const GemmArgs& args, const Plan& plan, const char* w, int64_t block) {
  if (plan.task_panels > 1 || plan.row_blocks == 1) return {w + kPrefetchBytes, kLinePair};
  const int64_t bytes = plan.panel_bytes;
  const char* last = static_cast<const char*>(args.w.data) + (plan.panels - 1) * bytes;
  const char* next = w < last ? w + bytes : last;
  const int64_t step = CeilDiv(kLinePair, plan.row_blocks);
  return {next + bytes / kLinePair * step * block, step};
}

// Calls run_tile(block, panel) for every block of rows and panel of one task, all panels of a
// block before the next block. Tasks of one range of panels follow each other, so that a worker,
// whose tasks ascend, reads it from memory once.
template <typename RunTileFn>
TANDEM_INLINE void RunTask(const Plan& plan, int64_t task, const RunTileFn& run_tile) {
  const int64_t first_panel = task / plan.block_tasks * plan.task_panels;
  const int64_t last_panel = Least(first_panel + plan.task_panels, plan.panels);
  const int64_t first_block = task % plan.block_tasks * plan.task_blocks;
  const int64_t last_block = Least(first_block + plan.task_blocks, plan.row_blocks);
  for (int64_t block = first_block; block < last_block; ++block) {
    for (int64_t panel = first_panel; panel < last_panel; ++panel) run_tile(block, panel);
  }
}

}  // namespace tandem::kernels::TANDEM_ISA
