// A layer's paged cache and a batch of sequences over it, for the attention tests. It keeps K and V
// by sequence and position, and writes them into blocks at random places of a poisoned region.
// Thread safety: one thread.
#pragma once

#include <algorithm>
#include <numeric>

#include "kernel_fixture.h"

namespace tandem::kernels {

struct AttentionShape {
  KvShape kv;
  int32_t num_heads = 0;
  int32_t sliding_window = 0;
};

// One sequence's inputs for every position of it.
struct SequenceData {
  int32_t length = 0;
  Floats q{0}, k{0}, v{0};  // [length][heads · head_dim]
};

// Rows [begin, end) of a sequence in one call.
struct Chunk {
  size_t sequence = 0;
  int32_t begin = 0, end = 0;
};

class PagedCache {
 public:
  // Blocks for sequences of `lengths`, in an order drawn from `generator`, with unused ones
  // between.
  PagedCache(const KvShape& shape, const std::vector<int32_t>& lengths, std::mt19937_64* generator)
      : shape_(shape), region_(0) {
    int32_t blocks = 0;
    for (int32_t length : lengths) blocks += length / shape.block_tokens + 1;
    std::vector<int32_t> order(static_cast<size_t>(blocks + 7));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), *generator);
    region_ = Floats(order.size() * KvBlockBytes(shape) / sizeof(float));
    size_t next = 0;
    for (int32_t length : lengths) {
      tables_.emplace_back();
      for (int32_t b = 0; b <= length / shape.block_tokens; ++b) {
        tables_.back().push_back(order[next++]);
      }
    }
  }

  KvLayer layer() { return {shape_, region_.data(), static_cast<int64_t>(KvBlockBytes(shape_))}; }
  std::vector<int32_t>& table(size_t sequence) { return tables_[sequence]; }

 private:
  KvShape shape_;
  Floats region_;
  std::vector<std::vector<int32_t>> tables_;
};

// The rows of some chunks as one batch: their places, and their q, k and v one after the other.
struct BatchRows {
  BatchRows(const AttentionShape& shape, const std::vector<SequenceData>& data,
            const std::vector<Chunk>& chunks, PagedCache* cache)
      : q_size(static_cast<size_t>(shape.num_heads) * shape.kv.head_dim),
        kv_size(static_cast<size_t>(shape.kv.num_kv_heads) * shape.kv.head_dim) {
    for (const Chunk& chunk : chunks) {
      sequences.push_back(
          {cache->table(chunk.sequence).data(), rows, chunk.end - chunk.begin, chunk.begin});
      rows += chunk.end - chunk.begin;
      context = std::max(context, chunk.end);
    }
    const size_t count = static_cast<size_t>(rows);
    q = Floats(count * q_size), k = Floats(count * kv_size), v = Floats(count * kv_size);
    size_t row = 0;
    for (const Chunk& chunk : chunks) {
      const SequenceData& from = data[chunk.sequence];
      const size_t begin = static_cast<size_t>(chunk.begin);
      const size_t size = static_cast<size_t>(chunk.end - chunk.begin);
      std::memcpy(q.data() + row * q_size, from.q.data() + begin * q_size, size * q_size * 4);
      std::memcpy(k.data() + row * kv_size, from.k.data() + begin * kv_size, size * kv_size * 4);
      std::memcpy(v.data() + row * kv_size, from.v.data() + begin * kv_size, size * kv_size * 4);
      row += size;
    }
  }

  size_t q_size, kv_size;  // floats of a row
  std::vector<SequenceRows> sequences;
  int32_t rows = 0, context = 0;  // context: the highest position + 1
  Floats q{0}, k{0}, v{0};
};

inline void WriteRows(const Backend& backend, const BatchRows& batch, PagedCache* cache,
                      const ParallelFor& parallel) {
  KvWriteArgs write;
  write.k = batch.k.data();
  write.v = batch.v.data();
  write.k_stride = write.v_stride = static_cast<int64_t>(batch.kv_size);
  write.layer = cache->layer();
  write.sequences = batch.sequences.data();
  write.num_sequences = static_cast<int32_t>(batch.sequences.size());
  backend.kv_write(write, parallel);
}

// Writes the chunks' K and V and attends with their rows, as one batch; returns
// [rows][heads·head_dim] in the chunks' order. Scratch and output start poisoned.
// `scratch_context`: the tokens that scratch is made for; 0: as many as the batch has.
inline Floats RunBatch(const Backend& backend, const AttentionShape& shape,
                       const std::vector<SequenceData>& data, const std::vector<Chunk>& chunks,
                       PagedCache* cache, const ParallelFor& parallel, uint16_t* out_bf16 = nullptr,
                       int32_t scratch_context = 0) {
  const BatchRows batch(shape, data, chunks, cache);
  WriteRows(backend, batch, cache, parallel);
  Floats out(static_cast<size_t>(batch.rows) * batch.q_size);
  const size_t scratch_bytes = AttentionScratchBytes(
      {shape.num_heads, shape.kv, std::max(batch.rows, 1),
       scratch_context == 0 ? batch.context : scratch_context, parallel.num_workers});
  Floats scratch(scratch_bytes / sizeof(float));
  AttentionArgs args;
  args.q = batch.q.data();
  args.q_stride = args.out_stride = static_cast<int64_t>(batch.q_size);
  args.num_heads = shape.num_heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(shape.kv.head_dim));
  args.sliding_window = shape.sliding_window;
  args.layer = cache->layer();
  args.sequences = batch.sequences.data();
  args.num_sequences = static_cast<int32_t>(batch.sequences.size());
  args.out = out_bf16 == nullptr ? out.data() : nullptr;
  args.out_bf16 = out_bf16;
  args.scratch = scratch.data();
  args.scratch_bytes = scratch_bytes;
  backend.attention(args, parallel);
  return out;
}

}  // namespace tandem::kernels
