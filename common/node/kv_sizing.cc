#include "common/node/kv_sizing.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/node/available_memory.h"
#include "common/node/sequence_window.h"
#include "common/telemetry/start_log.h"

namespace tandem::node {
namespace {

// One window slot for so many blocks.
constexpr int64_t kBlocksPerSlot = 4;

// Says what the layers' groups hold.
void LogGroups(const engine::EngineSpec& spec, const KvSize& size) {
  const kv::BlockLayout& layout = spec.layout;
  if (!layout.windowed()) return;
  const int64_t tokens = spec.context_tokens;
  const KvSize sequence = SizeOfSequence(layout, tokens);
  LogStart("KV cache of layers with windows",
           {{"all_tokens",
             absl::StrFormat("%d layers, %d blocks = %d tokens", layout.Groups()[0].layers.size(),
                             size.blocks, size.blocks * layout.block_tokens)},
            {"window", absl::StrFormat("%d layers of %d tokens, %d slots = %d tokens",
                                       layout.windowed_layers.size(), layout.window_tokens,
                                       size.window_slots, size.window_slots * layout.block_tokens)},
            {"bytes", size.Bytes(layout)},
            {"sequence",
             absl::StrFormat("%d tokens: %d bytes, of %d without windows", tokens,
                             sequence.Bytes(layout), sequence.blocks * layout.block_bytes())}});
}

// The size where --kv-blocks names it.
absl::StatusOr<KvSize> GivenKvSize(const NodeConfig& config, engine::Engine& engine) {
  // A device's buffers for a step come before its KV cache: afterwards there may be no room, and
  // each growth of a buffer costs the graphs that were captured.
  ASSIGN_OR_RETURN(const std::optional<int64_t> device_bytes, engine.DeviceKvBytes());
  if (device_bytes.has_value())
    RETURN_IF_ERROR(engine.ProfileStepBytes(config.max_batch_tokens).status());
  const engine::EngineSpec& spec = engine.spec();
  const KvSize size{.blocks = config.kv.blocks,
                    .window_slots = SlotsFor(spec.layout, config.kv.blocks, config.max_batch_tokens,
                                             config.kv.stores_blocks())};
  LogGroups(spec, size);
  return size;
}

}  // namespace

KvSize SizeOfSequence(const kv::BlockLayout& layout, int64_t tokens) {
  KvSize size{.blocks = layout.BlocksFor(tokens)};
  if (layout.windowed()) size.window_slots = std::min(size.blocks, KeptSlots(layout));
  return size;
}

int64_t SlotsFor(const kv::BlockLayout& layout, int64_t blocks, int64_t step_tokens,
                 bool whole_blocks) {
  if (!layout.windowed()) return 0;
  const int64_t least = KeptSlots(layout) + layout.BlocksFor(step_tokens);
  return whole_blocks ? blocks : std::min(blocks, std::max(least, blocks / kBlocksPerSlot));
}

KvSize FitKv(const kv::BlockLayout& layout, int64_t bytes, int64_t blocks_max, int64_t step_tokens,
             bool whole_blocks) {
  // More blocks never take fewer bytes: by bisection.
  int64_t fitting = 0,
          above = std::min(blocks_max, bytes / std::max<int64_t>(1, layout.full_bytes())) + 1;
  const auto size_of = [&](int64_t blocks) {
    return KvSize{.blocks = blocks,
                  .window_slots = SlotsFor(layout, blocks, step_tokens, whole_blocks)};
  };
  while (above - fitting > 1) {
    const int64_t middle = fitting + (above - fitting) / 2;
    (size_of(middle).Bytes(layout) <= bytes ? fitting : above) = middle;
  }
  return size_of(fitting);
}

absl::StatusOr<KvSize> ChooseKvSize(const NodeConfig& config, engine::Engine& engine) {
  const engine::EngineSpec& spec = engine.spec();
  const bool whole_blocks = config.kv.stores_blocks();
  if (config.kv.blocks > 0) return GivenKvSize(config, engine);
  ASSIGN_OR_RETURN(const int64_t step_bytes, engine.ProfileStepBytes(config.max_batch_tokens));
  ASSIGN_OR_RETURN(const std::optional<int64_t> device_bytes, engine.DeviceKvBytes());
  ASSIGN_OR_RETURN(const int64_t available_bytes, device_bytes.has_value()
                                                      ? absl::StatusOr<int64_t>(*device_bytes)
                                                      : AvailableMemoryBytes());
  // A device's buffers for a step are allocated by now.
  const auto budget =
      device_bytes.has_value()
          ? available_bytes
          : static_cast<int64_t>(config.kv.memory_fraction *
                                 (available_bytes - spec.mapped_bytes - config.kv.swap_bytes)) -
                step_bytes;
  // All sequences at full length together use no more blocks than this.
  const int64_t usable = std::max<int64_t>(
      kKvBlocksMin, spec.layout.BlocksFor(spec.context_tokens) * config.max_sequences);
  const KvSize fitting = FitKv(spec.layout, budget, std::numeric_limits<int32_t>::max(),
                               config.max_batch_tokens, whole_blocks);
  const KvSize size = FitKv(spec.layout, budget, usable, config.max_batch_tokens, whole_blocks);
  const std::string a_block =
      spec.layout.windowed() ? absl::StrFormat("(%d a block + %d a window slot)",
                                               spec.layout.full_bytes(), spec.layout.window_bytes())
                             : absl::StrFormat("%d a block", spec.layout.block_bytes());
  LogStart(
      "sized KV cache",
      {{"how", device_bytes.has_value()
                   ? absl::StrFormat("%d bytes of the device / %s = %d blocks", available_bytes,
                                     a_block, fitting.blocks)
                   : absl::StrFormat("(%g * (%d available - %d mapped weights - %d swap space) - "
                                     "%d for a step) / %s = %d blocks",
                                     config.kv.memory_fraction, available_bytes, spec.mapped_bytes,
                                     config.kv.swap_bytes, step_bytes, a_block, fitting.blocks)},
       {"useful", absl::StrFormat("%d sequences of %d tokens = %d blocks", config.max_sequences,
                                  spec.context_tokens, usable)},
       {"blocks", size.blocks},
       {"tokens", size.blocks * spec.layout.block_tokens}});
  LogGroups(spec, size);
  if (size.blocks < kKvBlocksMin) {
    return absl::ResourceExhaustedError(absl::StrCat(
        device_bytes.has_value()
            ? absl::StrCat("gpu-memory-fraction ", config.gpu_memory_fraction, " leaves ")
            : absl::StrCat("kv-memory-fraction ", config.kv.memory_fraction, " of "),
        available_bytes, " bytes available holds ", size.blocks, " KV blocks of ",
        spec.layout.block_bytes(), " bytes beside ", step_bytes, " bytes for a step",
        device_bytes.has_value() || config.kv.swap_bytes == 0
            ? ""
            : absl::StrCat(" and ", config.kv.swap_bytes, " of swap-space"),
        "; expected at least ", kKvBlocksMin));
  }
  return size;
}

}  // namespace tandem::node
