#include "common/engine/device_kv.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::engine {
namespace {

using kernels::DeviceBuffer;

// One pinned buffer: long enough for the link's full rate, at least one block.
constexpr int64_t kStageBytes = int64_t{8} << 20;

}  // namespace

absl::StatusOr<kernels::KvType> ParseDeviceKvType(const std::string& name) {
  if (name == "bf16") return kernels::KvType::kBf16;
  if (name == "int8") return kernels::KvType::kInt8;
  if (name == "fp8") return kernels::KvType::kFp8;
  return absl::InvalidArgumentError(
      absl::StrCat("kv_type is \"", name, "\" (--kv-type), but device cuda has bf16, int8 or fp8"));
}

absl::StatusOr<std::unique_ptr<DeviceKv>> DeviceKv::Create(const kv::BlockLayout& layout,
                                                           int64_t num_blocks,
                                                           kernels::Device& device) {
  std::unique_ptr<DeviceKv> kv(new DeviceKv());
  ASSIGN_OR_RETURN(kv->arena_, kv::BlockArena::Create(layout, num_blocks));
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    ASSIGN_OR_RETURN(kv->regions_.emplace_back(),
                     device.Allocate(DeviceBuffer::Kind::kDevice,
                                     static_cast<size_t>(num_blocks * layout.layer_block_bytes)));
  }
  ASSIGN_OR_RETURN(kv->copies_, device.NewStream());
  for (Stage& stage : kv->stages_) {
    ASSIGN_OR_RETURN(
        stage.memory,
        device.Allocate(DeviceBuffer::Kind::kPinnedHost,
                        static_cast<size_t>(std::max(kStageBytes, layout.layer_block_bytes))));
    ASSIGN_OR_RETURN(stage.done, device.NewEvent());
  }
  return kv;
}

std::vector<DeviceKv::Run> DeviceKv::RunsOf(int layer, absl::Span<const BlockId> blocks) const {
  const int64_t longest =
      static_cast<int64_t>(stages_[0].memory.bytes()) / arena_->layout().layer_block_bytes;
  std::vector<Run> runs;
  for (BlockId block : blocks) {
    if (!runs.empty() && runs.back().first_block + runs.back().num_blocks == block.value() &&
        runs.back().num_blocks < longest) {
      ++runs.back().num_blocks;
    } else {
      runs.push_back({layer, block.value(), 1});
    }
  }
  return runs;
}

std::byte* DeviceKv::HostBytes(const Run& run) const {
  return arena_->LayerRegion(run.layer) + run.first_block * arena_->layout().layer_block_bytes;
}
char* DeviceKv::DeviceBytes(const Run& run) const {
  return Region(run.layer) + run.first_block * arena_->layout().layer_block_bytes;
}
size_t DeviceKv::Bytes(const Run& run) const {
  return static_cast<size_t>(run.num_blocks * arena_->layout().layer_block_bytes);
}

absl::Status DeviceKv::FetchArrived(absl::Span<const SequenceSlice> slices) {
  std::vector<BlockId> arrived;
  for (const SequenceSlice& slice : slices) {
    const int64_t looked_at = arena_->layout().BlocksFor(slice.num_computed);
    const int64_t end = arena_->layout().BlocksFor(slice.num_computed + slice.num_new);
    for (int64_t i = 0; i < end; ++i) {
      const BlockId block = slice.blocks[static_cast<size_t>(i)];
      if (arena_->TakeArrived(block) && i < looked_at) arrived.push_back(block);
    }
  }
  if (arrived.empty()) return absl::OkStatus();
  std::sort(arrived.begin(), arrived.end());
  std::vector<Run> runs;
  for (int layer = 0; layer < arena_->layout().num_layers; ++layer) {
    const std::vector<Run> of_layer = RunsOf(layer, arrived);
    runs.insert(runs.end(), of_layer.begin(), of_layer.end());
  }
  return Send(runs);
}

absl::Status DeviceKv::Send(absl::Span<const Run> runs) {
  for (size_t i = 0; i < runs.size(); ++i) {
    Stage& stage = stages_[i % kStages];
    if (i >= kStages) RETURN_IF_ERROR(stage.done->Synchronize());
    std::memcpy(stage.memory.data(), HostBytes(runs[i]), Bytes(runs[i]));
    copies_->CopyIn(DeviceBytes(runs[i]), stage.memory.data(), Bytes(runs[i]));
    copies_->Record(*stage.done);
  }
  return copies_->Synchronize();
}

std::vector<BlockId> DeviceKv::WrittenBlocks(absl::Span<const SequenceSlice> slices) const {
  const int64_t block_tokens = arena_->layout().block_tokens;
  std::vector<BlockId> blocks;
  for (const SequenceSlice& slice : slices) {
    const int64_t last = (slice.num_computed + slice.num_new - 1) / block_tokens;
    for (int64_t i = slice.num_computed / block_tokens; i <= last; ++i) {
      blocks.push_back(slice.blocks[static_cast<size_t>(i)]);
    }
  }
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

absl::Status DeviceKv::Mirror(int layer, absl::Span<const BlockId> blocks,
                              kernels::DeviceEvent& ready) {
  copies_->Wait(ready);
  const std::vector<Run> runs = RunsOf(layer, blocks);
  // While one run is on its way, the one before moves from its stage to the arena.
  for (size_t i = 0; i < runs.size() + 1; ++i) {
    if (i < runs.size()) {
      Stage& stage = stages_[i % kStages];
      copies_->CopyOut(stage.memory.data(), DeviceBytes(runs[i]), Bytes(runs[i]));
      copies_->Record(*stage.done);
    }
    if (i == 0) continue;
    Stage& before = stages_[(i - 1) % kStages];
    RETURN_IF_ERROR(before.done->Synchronize());
    std::memcpy(HostBytes(runs[i - 1]), before.memory.data(), Bytes(runs[i - 1]));
  }
  return copies_->status();
}

}  // namespace tandem::engine
