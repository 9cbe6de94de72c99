// Fetches the K and V that one worker will read next into its L2 cache, at the pace at which the
// worker reads what was fetched before. Memory then works all through a generation step's
// attention, even while softmax and products run, and sees accesses in the order in which blocks
// lie: whole blocks, one head after the other. It changes no result bit.
//
// A worker's stream covers the task it runs and then the tasks behind it, which it will probably
// get next. A wrong guess costs memory traffic only. Thread safety: one worker. Owner: that
// worker's call.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/kv_view.h"

namespace tandem::kernels::TANDEM_ISA {

// The tasks of a call in their order; task t is KV heads [heads · (t % head_tasks), …) of block
// t / head_tasks.
struct KvTasks {
  const AttentionArgs* args;
  const RowBlock* blocks;
  int64_t num_tasks;
  int64_t head_tasks;  // for each block
  int32_t heads;       // of a task; the last of a block may have fewer
  int64_t rows_max;    // blocks of more rows are not streamed
};

class KvStream {
 public:
  TANDEM_INLINE explicit KvStream(const KvTasks* tasks) : tasks_(tasks), task_(-1) {}

  // The worker begins `task`.
  TANDEM_INLINE void Begin(int64_t task) {
    const bool guessed = task == begun_ + 1 && task_ >= task;
    begun_ = task;
    if (!guessed) Open(task);
  }
  // Starts fetching everything that `task` reads below `token` and that is not under way yet.
  TANDEM_INLINE void FetchBelow(int64_t task, int32_t token) {
    while (task_ == task && token_ < token && left_ > 0) {
      for (; left_ > 0; left_ -= 64, at_ += 64) _mm_prefetch(at_, _MM_HINT_T1);
      NextRun();
    }
  }
  // The address of the next `bytes` bytes, which the caller then fetches; nullptr at the end.
  TANDEM_INLINE const char* Next(int64_t bytes) {
    if (left_ <= 0) return nullptr;
    const char* at = at_;
    at_ += bytes;
    left_ -= bytes;
    if (left_ <= 0) NextRun();
    return at;
  }

 private:
  TANDEM_INLINE void Open(int64_t task) {
    left_ = 0;
    task_ = task;
    if (task >= tasks_->num_tasks) return;
    const AttentionArgs& args = *tasks_->args;
    const RowBlock& block = tasks_->blocks[task / tasks_->head_tasks];
    if (block.num_rows > tasks_->rows_max) return;
    const SequenceRows& sequence = args.sequences[block.sequence];
    const int32_t first = sequence.first_position + block.first_row;
    const int32_t begin = args.sliding_window > 0 ? first + 1 - args.sliding_window : 0;
    table_ = sequence.block_table;
    end_token_ = (first + block.num_rows + 15) / 16 * 16;
    first_head_ = static_cast<int32_t>(task % tasks_->head_tasks) * tasks_->heads;
    const int32_t left = args.layer.shape.num_kv_heads - first_head_;
    heads_ = tasks_->heads < left ? tasks_->heads : left;
    token_ = begin > 0 ? begin / 16 * 16 : 0;
    slab_ = 0;
    SetRun();
  }
  // Tokens of the block at token_ that are read, from token_ on.
  TANDEM_INLINE int32_t Wanted() const {
    const int32_t block_tokens = tasks_->args->layer.shape.block_tokens;
    const int32_t in_block = block_tokens - token_ % block_tokens;
    return in_block < end_token_ - token_ ? in_block : end_token_ - token_;
  }
  // A whole block's heads are one run of bytes; of a part, each head's K and V are one.
  TANDEM_INLINE void SetRun() {
    const KvLayer& layer = tasks_->args->layer;
    const int32_t block_tokens = layer.shape.block_tokens, wanted = Wanted();
    const int64_t slab_bytes = static_cast<int64_t>(KvSlabBytes(layer.shape));
    at_ = static_cast<const char*>(layer.base) +
          table_[token_ / block_tokens] * layer.block_stride_bytes +
          (first_head_ * 2 + slab_) * slab_bytes;
    if (wanted == block_tokens) {
      left_ = heads_ * 2 * slab_bytes;
      return;
    }
    const int64_t tile_bytes = slab_bytes / (block_tokens / 16);
    at_ += token_ % block_tokens / 16 * tile_bytes;
    left_ = wanted / 16 * tile_bytes;
  }
  TANDEM_INLINE void NextRun() {
    const int32_t wanted = Wanted();
    const bool whole = wanted == tasks_->args->layer.shape.block_tokens;
    if (!whole && ++slab_ < heads_ * 2) {
      SetRun();
      return;
    }
    slab_ = 0;
    token_ += wanted;
    if (token_ < end_token_) {
      SetRun();
    } else {
      Open(task_ + 1);
    }
  }

  const KvTasks* tasks_;
  int64_t task_;
  int64_t begun_ = -2;  // the task that the worker runs
  const int32_t* table_ = nullptr;
  int32_t token_ = 0, end_token_ = 0;
  int32_t first_head_ = 0, heads_ = 0;
  int32_t slab_ = 0;  // within a part of a block
  const char* at_ = nullptr;
  int64_t left_ = 0;
};

}  // namespace tandem::kernels::TANDEM_ISA
