#include "common/engine/device/device_partials.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/api/attention_partials.h"
#include "kernels/api/device_ops.h"

namespace tandem::engine {
namespace {

using kernels::DeviceBuffer;

// Where an array of `count` elements begins, and one beyond its end in *end.
template <typename T>
size_t Section(size_t count, size_t* end) {
  const size_t begin = (*end + 255) / 256 * 256;
  *end = begin + count * sizeof(T);
  return begin;
}

}  // namespace

absl::Status Grow(kernels::Device& device, DeviceBuffer::Kind kind, size_t bytes,
                  DeviceBuffer* buffer) {
  if (bytes <= buffer->bytes()) return absl::OkStatus();
  *buffer = DeviceBuffer();  // both together need not fit
  ASSIGN_OR_RETURN(*buffer, device.Allocate(kind, bytes));
  return absl::OkStatus();
}

DevicePartials::DevicePartials(const Options& options, kernels::Device& device,
                               kernels::DeviceStream& stream)
    : options_(options), device_(device), stream_(stream) {
  TANDEM_CHECK(Serves(options.num_heads, options.kv.num_kv_heads), "heads ", options.num_heads);
}

int32_t DevicePartials::ChunkRows() const {
  return kernels::kNarrowVectors / (options_.num_heads / options_.kv.num_kv_heads);
}

int64_t DevicePartials::RecordBytes() const {
  return kernels::PieceBytes(1, options_.num_heads, options_.kv.head_dim);
}

absl::Status DevicePartials::Prepare(const Work& work) {
  const std::vector<kernels::AttentionItem> items =
      kernels::SchedulePartials({.num_heads = options_.num_heads,
                                 .num_kv_heads = options_.kv.num_kv_heads,
                                 .items_wanted = options_.items_wanted},
                                work.rows);
  counts_ = {static_cast<int32_t>(items.size()), 0, static_cast<int32_t>(work.merges.size())};
  size_t bytes = items.size() * sizeof(kernels::AttentionItem);
  merges_at_ = Section<kernels::AttentionMerge>(work.merges.size(), &bytes);
  counts_at_ = Section<kernels::AttentionCounts>(1, &bytes);
  tables_at_ = Section<int32_t>(work.tables.size(), &bytes);
  RETURN_IF_ERROR(Grow(device_, DeviceBuffer::Kind::kPinnedHost, bytes, &host_));
  RETURN_IF_ERROR(Grow(device_, DeviceBuffer::Kind::kDevice, bytes, &device_copy_));
  RETURN_IF_ERROR(Grow(device_, DeviceBuffer::Kind::kDevice,
                       static_cast<size_t>(work.num_records * RecordBytes()), &records_));
  std::copy(items.begin(), items.end(), host_.as<kernels::AttentionItem>());
  std::copy(work.merges.begin(), work.merges.end(),
            reinterpret_cast<kernels::AttentionMerge*>(host_.data() + merges_at_));
  *reinterpret_cast<kernels::AttentionCounts*>(host_.data() + counts_at_) = counts_;
  std::copy(work.tables.begin(), work.tables.end(),
            reinterpret_cast<int32_t*>(host_.data() + tables_at_));
  stream_.CopyIn(device_copy_.data(), host_.data(), bytes);
  return stream_.status();
}

kernels::DeviceAttentionArgs DevicePartials::Args(char* region) const {
  kernels::DeviceAttentionArgs args;
  args.num_heads = options_.num_heads;
  args.scale = options_.scale;
  args.layer = {options_.kv, region, options_.layer_block_bytes};
  const char* base = device_copy_.data();
  args.tables = reinterpret_cast<const int32_t*>(base + tables_at_);
  args.narrow_items = reinterpret_cast<const kernels::AttentionItem*>(base);
  args.merges = reinterpret_cast<const kernels::AttentionMerge*>(base + merges_at_);
  args.counts = reinterpret_cast<const kernels::AttentionCounts*>(base + counts_at_);
  args.multiprocessors = device_.properties().multiprocessors;
  args.records = records_.as<float>();
  return args;
}

void DevicePartials::Compute(const kernels::Bf16Bits* q, char* region) {
  kernels::DeviceAttentionArgs args = Args(region);
  args.q = q;
  args.launch.narrow_items = counts_.narrow_items;
  device_.ops().attention(args, stream_);
}

void DevicePartials::Merge(kernels::Bf16Bits* out, char* region) {
  kernels::DeviceAttentionArgs args = Args(region);
  args.out = out;
  args.launch.merges = counts_.merges;
  device_.ops().attention(args, stream_);
}

}  // namespace tandem::engine
