#include "common/engine/device/device_lent_attention.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/engine/slice_check.h"
#include "kernels/api/attention.h"

namespace tandem::engine {
namespace {

using kernels::DeviceBuffer;

float Widen(kernels::Bf16Bits bits) {
  const uint32_t word = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

}  // namespace

DeviceLentAttention::DeviceLentAttention(const DevicePartials::Options& options,
                                         kernels::Device& device, kernels::DeviceStream& stream)
    : options_(options), device_(device), stream_(stream), partials_(options, device, stream) {}

void DeviceLentAttention::StartStep(absl::Span<const SequenceSlice> slices) {
  borrowers_.clear();
  status_ = absl::OkStatus();
  int32_t row = 0;
  for (const SequenceSlice& slice : slices) {
    const int32_t rows = static_cast<int32_t>(slice.num_new);
    if (slice.remote != nullptr) slice.remote->Begin();
    if (HasLent(slice)) {
      borrowers_.push_back({slice.remote, row, rows, static_cast<int32_t>(slice.num_computed),
                            slice.remote->lent.back().units.end, slice.blocks});
    }
    row += rows;
  }
  TANDEM_CHECK(borrowers_.empty() || peers_ != nullptr, "lent KV and no RemoteAttention");
}

void DeviceLentAttention::Attend(const Layer& layer, absl::FunctionRef<void()> meanwhile) {
  if (!status_.ok()) return;
  Place place;
  bool first = true;
  while (TakeWave(&place)) {
    status_ = RunWave(layer, [&] {
      if (first) meanwhile();
      first = false;
    });
    if (!status_.ok()) return;
  }
  if (first) meanwhile();
  // What follows computes with these rows, so they are numbers.
  const int64_t row_bytes = q_floats() * static_cast<int64_t>(sizeof(kernels::Bf16Bits));
  for (const Borrower& borrower : borrowers_) {
    if (borrower.remote->failure.ok()) continue;
    stream_.Fill(reinterpret_cast<char*>(layer.out) + borrower.first_row * row_bytes, 0,
                 static_cast<size_t>(borrower.num_rows * row_bytes));
  }
}

void DeviceLentAttention::AddChunk(const Borrower& borrower, int32_t first_row, int32_t num_rows) {
  const int32_t position = borrower.first_position + first_row;
  const int32_t end = (position + num_rows - 1) / kernels::kPartitionTokens + 1;
  const int32_t record = static_cast<int32_t>(work_.num_records);
  const int32_t row = borrower.first_row + first_row;
  work_.rows.push_back({.first_row = row,
                        .num_rows = num_rows,
                        .first_position = position,
                        .table_offset = static_cast<int32_t>(work_.tables.size()),
                        .first_partition = borrower.units,
                        .end_partition = end,
                        .first_record = record + borrower.units * num_rows});
  work_.merges.push_back({row, num_rows, record, end});
  work_.num_records += int64_t{end} * num_rows;
}

bool DeviceLentAttention::TakeWave(Place* place) {
  shares_.clear();
  work_ = {};
  const int64_t records_max = DevicePartials::kRecordBytesMax / partials_.RecordBytes();
  for (; place->borrower < borrowers_.size(); *place = {place->borrower + 1, 0}) {
    const Borrower& borrower = borrowers_[place->borrower];
    if (!borrower.remote->failure.ok()) continue;
    Share share{.borrower = &borrower, .first_row = place->row, .first_chunk = work_.merges.size()};
    while (place->row < borrower.num_rows) {
      const int32_t rows = std::min(partials_.ChunkRows(), borrower.num_rows - place->row);
      const int64_t position = int64_t{borrower.first_position} + place->row + rows - 1;
      const int64_t records = (position / kernels::kPartitionTokens + 1) * rows;
      if (work_.num_records > 0 && work_.num_records + records > records_max) break;
      AddChunk(borrower, place->row, rows);
      place->row += rows;
    }
    share.num_rows = place->row - share.first_row;
    if (share.num_rows > 0) {
      shares_.push_back(share);
      // Entries of lent blocks are not read.
      for (const BlockId block : borrower.blocks) work_.tables.push_back(block.value());
    }
    if (place->row < borrower.num_rows) return true;
  }
  return !shares_.empty();
}

absl::Status DeviceLentAttention::RunWave(const Layer& layer, absl::FunctionRef<void()> meanwhile) {
  // The last wave's copies from pinned memory were done before its queries were.
  RETURN_IF_ERROR(partials_.Prepare(work_));
  RETURN_IF_ERROR(CopyQueries(layer));
  partials_.Compute(layer.q, layer.region);
  meanwhile();
  RETURN_IF_ERROR(queries_copied_->Synchronize());
  MakeParts(layer.index);
  peers_->Ask(absl::MakeSpan(parts_));
  peers_->Collect(absl::MakeSpan(parts_));
  for (const Share& share : shares_) {
    RemoteKv& remote = *share.borrower->remote;
    for (size_t i = 0; i < remote.lent.size(); ++i)
      remote.Take(remote.lent[i], parts_[share.first_part + i].status);
  }
  RETURN_IF_ERROR(CopyAnswers());
  partials_.Merge(layer.out, layer.region);
  return stream_.status();
}

absl::Status DeviceLentAttention::CopyQueries(const Layer& layer) {
  if (queries_copied_ == nullptr) {
    ASSIGN_OR_RETURN(queries_copied_, device_.NewEvent());
  }
  int64_t rows = 0;
  for (const Share& share : shares_) rows += share.num_rows;
  RETURN_IF_ERROR(Grow(device_, DeviceBuffer::Kind::kPinnedHost,
                       static_cast<size_t>(rows * q_floats()) * sizeof(kernels::Bf16Bits),
                       &q_host_));
  kernels::Bf16Bits* to = q_host_.as<kernels::Bf16Bits>();
  for (Share& share : shares_) {
    share.first_q = static_cast<size_t>(to - q_host_.as<kernels::Bf16Bits>());
    const int64_t floats = share.num_rows * q_floats();
    const int64_t row = share.borrower->first_row + share.first_row;
    stream_.CopyOut(to, layer.q + row * q_floats(),
                    static_cast<size_t>(floats) * sizeof(kernels::Bf16Bits));
    to += floats;
  }
  stream_.Record(*queries_copied_);
  return stream_.status();
}

void DeviceLentAttention::MakeParts(int layer) {
  const Share& last = shares_.back();
  const size_t floats = last.first_q + static_cast<size_t>(last.num_rows * q_floats());
  queries_.resize(floats);
  std::transform(q_host_.as<kernels::Bf16Bits>(), q_host_.as<kernels::Bf16Bits>() + floats,
                 queries_.begin(), Widen);
  parts_.clear();
  int64_t bytes = 0;
  for (Share& share : shares_) {
    share.first_part = parts_.size();
    for (const LentUnits& lent : share.borrower->remote->lent) {
      parts_.push_back({.lent = lent,
                        .layer = layer,
                        .num_rows = share.num_rows,
                        .first_position = int64_t{share.borrower->first_position} + share.first_row,
                        .q = queries_.data() + share.first_q,
                        .q_stride = q_floats(),
                        .q_floats = q_floats(),
                        .answer_pieces = lent.units.size()});
      bytes += int64_t{lent.units.size()} * share.num_rows * partials_.RecordBytes();
    }
  }
  answers_.resize(static_cast<size_t>(bytes));
  std::byte* next = answers_.data();
  for (RemotePart& part : parts_) {
    const size_t size = static_cast<size_t>(int64_t{part.lent.units.size()} * part.num_rows *
                                            partials_.RecordBytes());
    part.answer = absl::MakeSpan(next, size);
    next += size;
  }
}

// Answers lie by unit and row of the share; records by chunk, then by unit and row of the chunk.
absl::Status DeviceLentAttention::CopyAnswers() {
  RETURN_IF_ERROR(Grow(device_, DeviceBuffer::Kind::kPinnedHost, answers_.size(), &records_host_));
  const int64_t bytes = partials_.RecordBytes();
  char* next = records_host_.data();
  for (const Share& share : shares_) {
    if (!share.borrower->remote->failure.ok()) continue;
    int32_t row = 0;
    for (size_t chunk = share.first_chunk; row < share.num_rows; ++chunk) {
      const kernels::AttentionMerge& merge = work_.merges[chunk];
      char* const begin = next;
      for (size_t i = 0; i < share.borrower->remote->lent.size(); ++i) {
        const RemotePart& part = parts_[share.first_part + i];
        for (int64_t unit = 0; unit < part.lent.units.size(); ++unit) {
          const size_t size = static_cast<size_t>(merge.num_rows * bytes);
          std::memcpy(next, part.answer.data() + (unit * share.num_rows + row) * bytes, size);
          next += size;
        }
      }
      stream_.CopyIn(partials_.records() + merge.first_record * bytes, begin,
                     static_cast<size_t>(next - begin));
      row += merge.num_rows;
    }
  }
  return stream_.status();
}

}  // namespace tandem::engine
