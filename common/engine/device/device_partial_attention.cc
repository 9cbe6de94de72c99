#include "common/engine/device/device_partial_attention.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/partial_check.h"
#include "kernels/api/attention.h"
#include "kernels/api/bf16.h"
#include "kernels/api/device_matrix.h"

namespace tandem::engine {
namespace {

using kernels::DeviceBuffer;

class DevicePartialAttention final : public PartialAttention {
 public:
  DevicePartialAttention(DevicePartialAttentionOptions options, DeviceKv& kv,
                         kernels::Device& device, std::unique_ptr<kernels::DeviceStream> stream)
      : options_(std::move(options)),
        kv_(kv),
        device_(device),
        stream_(std::move(stream)),
        partials_(options_.partials, device, *stream_) {}

  int64_t q_floats() const override {
    return int64_t{options_.config.num_heads} * options_.config.head_dim;
  }
  int64_t AnswerBytes(int32_t, const UnitSpan& units, int32_t num_rows) const override {
    return UnitRecordBytes(partials_, units, num_rows);
  }

  absl::Status Compute(const PartialQuery& query, absl::Span<std::byte> answer) override {
    RETURN_IF_ERROR(Check(query, answer));
    if (options_.fetch_arrived) RETURN_IF_ERROR(kv_.FetchBlocks(query.blocks));
    // As many rows at a time as the record area holds.
    const int64_t row_bytes = int64_t{query.units.size()} * partials_.RecordBytes();
    const int64_t chunk = partials_.ChunkRows();
    const int32_t rows = static_cast<int32_t>(
        std::max<int64_t>(1, DevicePartials::kRecordBytesMax / (row_bytes * chunk)) * chunk);
    for (int32_t first = 0; first < query.num_rows; first += rows) {
      RETURN_IF_ERROR(ComputeRows(query, first, std::min(rows, query.num_rows - first), answer));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Check(const PartialQuery& query, absl::Span<std::byte> answer) const {
    RETURN_IF_ERROR(CheckQuery(query, {.num_layers = options_.config.num_layers,
                                       .unit_tokens = kernels::kPartitionTokens,
                                       .block_tokens = options_.partials.kv.block_tokens,
                                       .num_blocks = kv_.arena().num_blocks(),
                                       .q_floats = q_floats()}));
    return CheckAnswer(
        query, options_.config.layers[static_cast<size_t>(query.layer)].sliding_window > 0,
        static_cast<int64_t>(answer.size()), AnswerBytes(query.layer, query.units, query.num_rows));
  }

  // Rows [first, first + count) of the question.
  absl::Status ComputeRows(const PartialQuery& query, int32_t first, int32_t count,
                           absl::Span<std::byte> answer) {
    RETURN_IF_ERROR(Reserve(query.units, count));
    const float* q = query.q.data() + first * q_floats();
    kernels::Bf16Bits* rounded = q_host_.as<kernels::Bf16Bits>();
    // A device's queries are bf16, so this rounds none of them.
    for (int64_t i = 0; i < count * q_floats(); ++i) rounded[i] = kernels::FloatToBf16(q[i]);
    RETURN_IF_ERROR(partials_.Prepare(WorkOf(query, first, count)));
    stream_->CopyIn(q_.data(), rounded, static_cast<size_t>(count * q_floats()) * sizeof(*rounded));
    partials_.Compute(q_.as<kernels::Bf16Bits>(), kv_.Region(query.layer));
    stream_->CopyOut(records_host_.data(), partials_.records(),
                     static_cast<size_t>(UnitRecordBytes(partials_, query.units, count)));
    RETURN_IF_ERROR(stream_->Synchronize());
    GatherRows(query, first, count, answer);
    return absl::OkStatus();
  }

  absl::Status Reserve(const UnitSpan& units, int32_t rows) {
    const size_t q_bytes = static_cast<size_t>(rows * q_floats()) * sizeof(kernels::Bf16Bits);
    RETURN_IF_ERROR(Grow(device_, DeviceBuffer::Kind::kPinnedHost, q_bytes, &q_host_));
    RETURN_IF_ERROR(Grow(device_, DeviceBuffer::Kind::kDevice, q_bytes, &q_));
    return Grow(device_, DeviceBuffer::Kind::kPinnedHost,
                static_cast<size_t>(UnitRecordBytes(partials_, units, rows)), &records_host_);
  }

  DevicePartials::Work WorkOf(const PartialQuery& query, int32_t first, int32_t count) const {
    DevicePartials::Work work;
    for (const BlockId block : query.blocks) work.tables.push_back(block.value());
    const int32_t blocks_per_unit =
        static_cast<int32_t>(kernels::kPartitionTokens) / options_.partials.kv.block_tokens;
    for (int32_t row = 0; row < count; row += partials_.ChunkRows()) {
      const int32_t rows = std::min(partials_.ChunkRows(), count - row);
      work.rows.push_back(
          {.first_row = row,
           .num_rows = rows,
           .first_position = static_cast<int32_t>(query.first_position) + first + row,
           .table_offset = -query.units.first * blocks_per_unit,
           .first_partition = query.units.first,
           .end_partition = query.units.end,
           .first_record = static_cast<int32_t>(work.num_records)});
      work.num_records += int64_t{rows} * query.units.size();
    }
    return work;
  }

  // From the order of chunks to that of the answer, [units][query.num_rows].
  void GatherRows(const PartialQuery& query, int32_t first, int32_t count,
                  absl::Span<std::byte> answer) const {
    const int64_t bytes = partials_.RecordBytes();
    const char* from = records_host_.data();
    for (int32_t row = 0; row < count; row += partials_.ChunkRows()) {
      const int64_t rows = std::min(partials_.ChunkRows(), count - row);
      for (int64_t unit = 0; unit < query.units.size(); ++unit) {
        const int64_t to = (unit * query.num_rows + first + row) * bytes;
        std::memcpy(answer.data() + to, from, static_cast<size_t>(rows * bytes));
        from += rows * bytes;
      }
    }
  }

  const DevicePartialAttentionOptions options_;
  DeviceKv& kv_;
  kernels::Device& device_;
  const std::unique_ptr<kernels::DeviceStream> stream_;
  DevicePartials partials_;
  DeviceBuffer q_host_, q_;    // [rows][q_floats] bf16, pinned and of the device
  DeviceBuffer records_host_;  // pinned
};

}  // namespace

int64_t UnitRecordBytes(const DevicePartials& partials, const UnitSpan& units, int32_t num_rows) {
  return int64_t{units.size()} * num_rows * partials.RecordBytes();
}

absl::StatusOr<std::unique_ptr<PartialAttention>> NewDevicePartialAttention(
    DevicePartialAttentionOptions options, DeviceKv& kv, kernels::Device& device) {
  ASSIGN_OR_RETURN(std::unique_ptr<kernels::DeviceStream> stream, device.NewStream());
  return std::unique_ptr<PartialAttention>(
      std::make_unique<DevicePartialAttention>(std::move(options), kv, device, std::move(stream)));
}

}  // namespace tandem::engine
