#include "common/engine/device/device_kv_bytes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/device/device_partials.h"
#include "common/telemetry/start_log.h"

namespace tandem::engine {
namespace {

// CUDA hands out device memory in pieces of this size.
constexpr int64_t kGranuleBytes = int64_t{2} << 20;
// Buffers that are allocated, or grow, after the KV cache: of copies, payloads, the sampler and
// attention to lent KV.
constexpr int64_t kBuffersAfterKv = 16;
// Records of attention that a debtor and a creditor keep: one area each.
constexpr int64_t kRecordAreas = 2;
// One part in so many of the device's memory is for graphs and libraries: no call tells their
// sizes.
constexpr int64_t kLibraryShare = 64;

// What is allocated after the KV cache, and the part of a granule that each buffer wastes.
int64_t BytesAfterKv(const DeviceEngineOptions& options, const kv::BlockLayout& layout,
                     int64_t memory_bytes) {
  const int64_t slot = std::max(options.payload_slot_bytes, layout.layer_block_bytes);
  return (layout.num_layers + kBuffersAfterKv) * kGranuleBytes + options.payload_slots * slot +
         (options.lends ? kRecordAreas * DevicePartials::kRecordBytesMax : 0) +
         memory_bytes / kLibraryShare;
}

}  // namespace

absl::StatusOr<int64_t> DeviceBytesForKv(const DeviceEngineOptions& options,
                                         const kv::BlockLayout& layout, kernels::Device& device) {
  ASSIGN_OR_RETURN(const int64_t free_bytes, device.FreeBytes());
  const int64_t total = device.properties().memory_bytes;
  const int64_t own = device.allocated_bytes();
  // The fraction limits this engine's own memory. Memory that other processes use, perhaps one that
  // starts at the same time, does not count against it, but reduces the free bytes.
  const int64_t share =
      static_cast<int64_t>(options.memory_fraction * static_cast<double>(total)) - own;
  const int64_t later = BytesAfterKv(options, layout, total);
  const int64_t bytes = std::max<int64_t>(0, std::min(share, free_bytes - later));
  LogStart("the device's bytes for KV",
           {{"share",
             absl::StrCat(options.memory_fraction, " * ", total, " - ", own, " held = ", share)},
            {"free", absl::StrCat(free_bytes, " - ", later,
                                  " for what comes later = ", free_bytes - later)},
            {"bytes", bytes}});
  return bytes;
}

}  // namespace tandem::engine
