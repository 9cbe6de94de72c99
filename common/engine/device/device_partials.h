// Attention in two steps on a device (kernels/api/attention_partials.h): records of some partitions
// for some rows, and the merge of all records of a row. Both are the operator of plain attention
// with a schedule of its own, so a row's bits are those of plain attention. Devices fold in one
// level, so each record covers one partition (docs/adr/0071).
//
// A chunk is rows that share a narrow tile: ChunkRows at most. In the record area a chunk's records
// lie by partition, then by row: [partition][row][head][head_dim + 2].
//
//   Prepare(work)   schedule and block tables to the device
//   Compute         records of partitions whose KV lies here
//   (records of other partitions are copied to their places)
//   Merge           rows of the output
//
// Thread safety: none; the stream's thread. Owner: DeviceLentAttention and DevicePartialAttention,
// each with one of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/attention_schedule.h"
#include "kernels/api/device.h"
#include "kernels/api/device_attention.h"

namespace tandem::engine {

class DevicePartials {
 public:
  struct Options {
    int32_t num_heads = 0;
    float scale = 0;  // of scores
    kernels::KvShape kv;
    int64_t layer_block_bytes = 0;
    int32_t items_wanted = 1;  // narrow items that fill the device, over one KV head
  };
  struct Work {
    std::vector<kernels::PartialRows> rows;       // that Compute serves
    std::vector<kernels::AttentionMerge> merges;  // that Merge serves, a chunk each
    std::vector<int32_t> tables;
    int64_t num_records = 0;
  };
  // Records of one wave of rows take at most so many bytes, where one chunk does not take more.
  // They come out of the memory that the engine's fraction leaves free, when they are first needed.
  static constexpr int64_t kRecordBytesMax = int64_t{256} << 20;

  // `device` and `stream` outlive it.
  DevicePartials(const Options& options, kernels::Device& device, kernels::DeviceStream& stream);

  // Whether a row's vectors fit into a narrow tile, without which there are no records.
  static bool Serves(int32_t num_heads, int32_t num_kv_heads) {
    return num_heads / num_kv_heads <= kernels::kNarrowVectors;
  }
  int32_t ChunkRows() const;
  // Bytes of the records of one row over one partition, all heads.
  int64_t RecordBytes() const;

  // Enqueues the copy of the schedule and the tables, and allocates room for the records. The copy
  // of the last call must be done. Errors: the device's.
  absl::Status Prepare(const Work& work);
  // `region`: a layer's KV in device memory.
  void Compute(const kernels::Bf16Bits* q, char* region);
  void Merge(kernels::Bf16Bits* out, char* region);
  // The records: [num_records], in device memory.
  char* records() const { return records_.data(); }

 private:
  kernels::DeviceAttentionArgs Args(char* region) const;

  const Options options_;
  kernels::Device& device_;
  kernels::DeviceStream& stream_;
  kernels::DeviceBuffer host_, device_copy_;  // items, merges, counts and tables
  kernels::DeviceBuffer records_;
  size_t merges_at_ = 0, counts_at_ = 0, tables_at_ = 0;
  kernels::AttentionCounts counts_;
};

// Grows `buffer` to at least `bytes`. Its contents are lost. Errors: the device's.
absl::Status Grow(kernels::Device& device, kernels::DeviceBuffer::Kind kind, size_t bytes,
                  kernels::DeviceBuffer* buffer);

}  // namespace tandem::engine
