// The fixture of the device's attention tests: sequences over a cache of each type, batches of
// their rows, and softmax in double. Thread safety: one thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "device_fixture.h"
#include "kernels/api/attention_schedule.h"
#include "kernels/api/device_attention.h"
#include "kv_codes.h"

namespace tandem::kernels {
struct DeviceAttentionShape {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t sliding_window = 0;
  int32_t block_tokens = 32;
  KvType type = KvType::kBf16;

  KvShape Kv() const { return {num_kv_heads, head_dim, block_tokens, type}; }
};

// One sequence's inputs by position: [length][heads · head_dim].
struct DeviceSequence {
  int32_t length = 0;
  std::vector<Bf16Bits> q, k, v;
  std::vector<StoredHead> k_codes, v_codes;  // [length][kv_heads], where the cache holds codes
};

// Rows [begin, end) of a sequence.
struct DeviceRows {
  size_t sequence = 0;
  int32_t begin = 0, end = 0;
};

class DeviceAttentionTest : public DeviceTest {
 protected:
  DeviceSequence RandomSequence(const DeviceAttentionShape& shape, int32_t length) {
    const size_t rows = static_cast<size_t>(length);
    DeviceSequence data = {length,
                           NormalBf16(rows * shape.num_heads * shape.head_dim, 1.5f),
                           NormalBf16(rows * shape.num_kv_heads * shape.head_dim),
                           NormalBf16(rows * shape.num_kv_heads * shape.head_dim),
                           {},
                           {}};
    if (HasKvScales(shape.type)) {
      data.k_codes = Codes(shape, data.k);
      data.v_codes = Codes(shape, data.v);
    }
    return data;
  }

  // Heads of very different sizes, so that a scale of another token or head is found.
  std::vector<StoredHead> Codes(const DeviceAttentionShape& shape, const std::vector<Bf16Bits>& x) {
    const size_t dim = static_cast<size_t>(shape.head_dim);
    std::vector<StoredHead> heads;
    for (size_t at = 0; at < x.size(); at += dim) {
      std::vector<float> values;
      const float size = std::exp2(static_cast<float>(Uniform(-6, 0)));
      for (size_t i = 0; i < dim; ++i) values.push_back(FromBf16(x[at + i]) * size);
      heads.push_back(StoreHead(shape.type, values.data(), dim));
    }
    return heads;
  }

  // Writes K and V of one token and head to a place in the cache, which begins with K's slab.
  static void PutToken(const DeviceAttentionShape& shape, const DeviceSequence& data,
                       size_t head_of_token, int32_t token, uint8_t* slabs) {
    const size_t slab = KvSlabBytes(shape.Kv()), dim = static_cast<size_t>(shape.head_dim);
    if (!HasKvScales(shape.type)) {
      uint8_t* k = slabs + static_cast<size_t>(token) * dim * sizeof(Bf16Bits);
      std::memcpy(k, data.k.data() + head_of_token * dim, dim * sizeof(Bf16Bits));
      std::memcpy(k + slab, data.v.data() + head_of_token * dim, dim * sizeof(Bf16Bits));
      return;
    }
    for (const std::vector<StoredHead>* heads : {&data.k_codes, &data.v_codes}) {
      const StoredHead& head = (*heads)[head_of_token];
      std::memcpy(slabs + CodesOffset(shape.Kv(), token), head.codes.data(), dim);
      std::memcpy(slabs + ScaleOffset(shape.Kv(), token), &head.scale, sizeof(float));
      slabs += slab;
    }
  }

  // Element `d` of K (or V) of one token and head, as the cache holds it.
  static double Stored(const DeviceAttentionShape& shape, const DeviceSequence& data, bool value,
                       size_t head_of_token, int32_t d) {
    const size_t i = static_cast<size_t>(d);
    if (HasKvScales(shape.type)) {
      return (value ? data.v_codes : data.k_codes)[head_of_token].Value(shape.type, i);
    }
    const size_t at = head_of_token * static_cast<size_t>(shape.head_dim) + i;
    return double{FromBf16((value ? data.v : data.k)[at])};
  }

  // A cache with K and V of all sequences at random places, everything else NaN, and their tables;
  // entries of blocks that `first_needed` says are out of sight are nonsense.
  struct Cache {
    std::vector<uint8_t> region;
    std::vector<int32_t> tables;
    std::vector<int32_t> table_offsets;
  };
  Cache MakeCache(const DeviceAttentionShape& shape, const std::vector<DeviceSequence>& data,
                  const std::vector<DeviceRows>& chunks) {
    const int32_t block_tokens = shape.block_tokens;
    int32_t blocks = 3;
    for (const DeviceSequence& s : data) blocks += s.length / block_tokens + 1;
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), generator_);
    Cache cache;
    const size_t slab = KvSlabBytes(shape.Kv()), block_size = KvBlockBytes(shape.Kv());
    cache.region.assign(order.size() * block_size, 0xff);
    size_t next = 0;
    for (size_t i = 0; i < data.size(); ++i) {
      cache.table_offsets.push_back(static_cast<int32_t>(cache.tables.size()));
      int32_t lowest = 0, highest = 0;
      for (const DeviceRows& chunk : chunks) {
        if (chunk.sequence != i) continue;
        lowest = shape.sliding_window > 0 ? std::max(0, chunk.begin + 1 - shape.sliding_window) : 0;
        highest = chunk.end;
      }
      for (int32_t t = 0; t < data[i].length; ++t) {
        if (t % block_tokens == 0) cache.tables.push_back(order[next++]);
        if (t < lowest || t >= highest) continue;
        for (int32_t h = 0; h < shape.num_kv_heads; ++h) {
          uint8_t* slabs = cache.region.data() +
                           static_cast<size_t>(cache.tables.back()) * block_size +
                           static_cast<size_t>(h * 2) * slab;
          PutToken(shape, data[i], static_cast<size_t>(t * shape.num_kv_heads + h),
                   t % block_tokens, slabs);
        }
      }
      for (int32_t b = 0; b < lowest / block_tokens; ++b) {
        cache.tables[static_cast<size_t>(cache.table_offsets.back() + b)] = 1 << 28;
      }
    }
    return cache;
  }

  // Attends with the chunks' rows as one batch; returns [rows][heads · head_dim] in their order.
  std::vector<Bf16Bits> RunBatch(const DeviceAttentionShape& shape,
                                 const std::vector<DeviceSequence>& data,
                                 const std::vector<DeviceRows>& chunks, int32_t items_wanted) {
    const Cache cache = MakeCache(shape, data, chunks);
    std::vector<Bf16Bits> q;
    std::vector<AttentionSequence> sequences;
    const int32_t row_size = shape.num_heads * shape.head_dim;
    for (const DeviceRows& chunk : chunks) {
      sequences.push_back({static_cast<int32_t>(q.size()) / row_size, chunk.end - chunk.begin,
                           chunk.begin, cache.table_offsets[chunk.sequence]});
      const auto& from = data[chunk.sequence].q;
      q.insert(q.end(), from.begin() + chunk.begin * row_size, from.begin() + chunk.end * row_size);
    }
    const int32_t records_max = records_max_;
    const AttentionSchedule schedule = ScheduleAttention(
        {shape.num_heads, shape.num_kv_heads, shape.sliding_window, items_wanted, records_max},
        sequences);
    const AttentionCounts counts = {static_cast<int32_t>(schedule.narrow_items.size()),
                                    static_cast<int32_t>(schedule.wide_items.size()),
                                    static_cast<int32_t>(schedule.merges.size())};
    const DeviceBuffer dq = Upload(q), region = Upload(cache.region), tables = Upload(cache.tables),
                       narrow = Upload(schedule.narrow_items), wide = Upload(schedule.wide_items),
                       merges = Upload(schedule.merges),
                       dcounts = Upload(std::vector<AttentionCounts>{counts}),
                       records = Poisoned(static_cast<size_t>(records_max * shape.num_heads *
                                                              (shape.head_dim + 2)) *
                                          sizeof(float)),
                       out = Poisoned(q.size() * sizeof(Bf16Bits));
    DeviceAttentionArgs args;
    args.q = dq.as<Bf16Bits>();
    args.num_heads = shape.num_heads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    args.sliding_window = shape.sliding_window;
    args.layer.shape = shape.Kv();
    args.layer.base = region.data();
    args.layer.block_stride_bytes = static_cast<int64_t>(KvBlockBytes(shape.Kv()));
    args.tables = tables.as<int32_t>();
    args.narrow_items = narrow.as<AttentionItem>();
    args.wide_items = wide.as<AttentionItem>();
    args.merges = merges.as<AttentionMerge>();
    args.counts = dcounts.as<AttentionCounts>();
    // Fewer blocks than items here, more there: the loop over items is persistent.
    args.launch = {counts.narrow_items > 0 ? std::max(1, counts.narrow_items - 1) : 2,
                   counts.wide_items, counts.merges + 1};
    args.records = records.as<float>();
    args.multiprocessors = Uniform(1, 4);
    args.out = out.as<Bf16Bits>();
    ops().attention(args, stream());
    return Download<Bf16Bits>(out, q.size());
  }

  // One row and head in double.
  std::vector<double> Expected(const DeviceAttentionShape& shape, const DeviceSequence& data,
                               int32_t row, int32_t head) {
    const int32_t dim = shape.head_dim;
    const int32_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
    const int32_t begin =
        shape.sliding_window > 0 ? std::max(0, row + 1 - shape.sliding_window) : 0;
    const auto stored = [&](bool value, int32_t t, int32_t d) {
      return Stored(shape, data, value, static_cast<size_t>(t * shape.num_kv_heads + kv_head), d);
    };
    std::vector<double> scores, out(static_cast<size_t>(dim));
    double most = -INFINITY, sum = 0;
    for (int32_t t = begin; t <= row; ++t) {
      double score = 0;
      for (int32_t d = 0; d < dim; ++d) {
        const int32_t at = (row * shape.num_heads + head) * dim + d;
        score += FromBf16(data.q[static_cast<size_t>(at)]) * stored(false, t, d);
      }
      scores.push_back(score / std::sqrt(static_cast<double>(dim)));
      most = std::max(most, scores.back());
    }
    for (int32_t t = begin; t <= row; ++t) {
      const double p = std::exp(scores[static_cast<size_t>(t - begin)] - most);
      sum += p;
      for (int32_t d = 0; d < dim; ++d) {
        out[static_cast<size_t>(d)] += p * stored(true, t, d);
      }
    }
    for (double& value : out) value /= sum;
    return out;
  }

  void ExpectRight(const DeviceAttentionShape& shape, int32_t length, int32_t begin) {
    const std::vector<DeviceSequence> data = {RandomSequence(shape, length)};
    const std::vector<Bf16Bits> out = RunBatch(shape, data, {{0, begin, length}}, 4);
    for (int32_t row : {begin, (begin + length) / 2, length - 1}) {
      ExpectRowRight(shape, data[0], row,
                     out.data() + (row - begin) * shape.num_heads * shape.head_dim);
    }
  }

  // `out` is the row's: [heads · head_dim].
  void ExpectRowRight(const DeviceAttentionShape& shape, const DeviceSequence& data, int32_t row,
                      const Bf16Bits* out) {
    for (int32_t head = 0; head < shape.num_heads; ++head) {
      const std::vector<double> expected = Expected(shape, data, row, head);
      double error = 0, norm = 0;
      for (int32_t d = 0; d < shape.head_dim; ++d) {
        const double right = expected[static_cast<size_t>(d)];
        const double difference = FromBf16(out[head * shape.head_dim + d]) - right;
        error += difference * difference;
        norm += right * right;
      }
      // p and the result are rounded to bf16; errors of p do not cancel where values do.
      ASSERT_LE(std::sqrt(error), 2 * kBf16Unit * (std::sqrt(norm) + 1.0))
          << "row " << row << " head " << head << " of " << shape.num_heads << " over "
          << shape.num_kv_heads << " head_dim " << shape.head_dim << " window "
          << shape.sliding_window << " type " << static_cast<int>(shape.type);
    }
  }

  DeviceAttentionShape RandomShape(int32_t head_dim) {
    const int32_t kv_heads = Uniform(1, 2), heads_per_kv = Uniform(1, 6);
    DeviceAttentionShape shape = {kv_heads * heads_per_kv, kv_heads, head_dim};
    shape.sliding_window = Uniform(0, 1) * Uniform(1, 400);
    shape.block_tokens = 16 << Uniform(0, 4);
    return shape;
  }

  int32_t records_max_ = 256;  // of RunBatch's schedules
};

}  // namespace tandem::kernels
