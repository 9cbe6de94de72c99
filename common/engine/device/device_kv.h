// The KV cache on a device, and its host side through which blocks travel between nodes.
//
// The device's regions have the arena's layout. This class can mirror what a step writes to the
// arena, layer by layer while later layers compute. Before a step reads blocks that arrived from
// another node, it copies them to the device. Both directions use two pinned buffers alternately,
// and both are verified: the device computes each block's checksum from its own memory, the host
// from the arena's. If they differ, the copy is repeated once. The arena is mapped memory that
// grows with the blocks that were transferred. The first copy that touches a piece of the arena
// pins it, up to a bound; copies from and to pinned pieces need no stage. Blocks that are needed
// outside of a step, or before one, are copied beside it on a stream of their own (FetchBlocks).
// Thread safety: the engine thread; any thread calls FetchBlocks. Owner: the device engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/engine/engine.h"
#include "common/engine/fork_copies.h"
#include "common/kv/block_arena.h"
#include "kernels/api/device.h"
#include "kernels/api/kv_cache.h"

namespace tandem::engine {

// Errors: kInvalidArgument for a name that is not "bf16", "int8" or "fp8".
absl::StatusOr<kernels::KvType> ParseDeviceKvType(const std::string& name);

class DeviceKv {
 public:
  // The most bytes of the arena that may be pinned. Copies of other pieces are staged.
  static constexpr int64_t kPinnedBytesMax = int64_t{8} << 30;

  // `device` outlives it. Errors: kResourceExhausted when the device or the host refuses the
  // memory.
  static absl::StatusOr<std::unique_ptr<DeviceKv>> Create(const kv::BlockLayout& layout,
                                                          int64_t num_blocks,
                                                          kernels::Device& device);
  ~DeviceKv();

  kv::BlockArena& arena() { return *arena_; }
  // A layer's region in device memory.
  char* Region(int layer) const { return regions_[static_cast<size_t>(layer)].data(); }

  // Copies blocks that arrived in the arena and that `slices` read or fork to the device, and
  // returns when all copies are done. It skips blocks that a slice writes from their first token
  // on, and those that forks are copied to. Errors: kDataLoss for a block whose copy differs twice.
  absl::Status FetchArrived(absl::Span<const SequenceSlice> slices);
  // The same for `blocks`, of which no running step reads or writes any: a creditor's, and those
  // that storage brought back before a sequence takes them. It delays no step. After an error they
  // count as arrived again, and the step that reads them copies them.
  absl::Status FetchBlocks(absl::Span<const BlockId> blocks);

  // Enqueues the copies of all layers' blocks on `stream`. Call it after FetchArrived. Errors: the
  // device's, when it refuses the memory for the list of copies.
  absl::Status CopyForks(absl::Span<const BlockCopy> copies, kernels::DeviceStream& stream);

  // Blocks that `slices` write, ascending.
  std::vector<BlockId> WrittenBlocks(absl::Span<const SequenceSlice> slices) const;
  // Copies one layer of `blocks` to the arena once `ready` is reached; returns when that is done.
  // Errors: as FetchArrived.
  absl::Status Mirror(int layer, absl::Span<const BlockId> blocks, kernels::DeviceEvent& ready);

 private:
  // A run of consecutive blocks of one layer.
  struct Run {
    int layer;
    int64_t first_block;
    int64_t num_blocks;
  };
  enum class Way { kToHost, kToDevice };
  static constexpr size_t kStages = 2;
  struct Stage {
    kernels::DeviceBuffer memory;                       // pinned
    kernels::DeviceBuffer device_checksums, checksums;  // [blocks], device and pinned
    std::unique_ptr<kernels::DeviceEvent> done;
  };
  // What one thread at a time copies with.
  struct Lane {
    std::unique_ptr<kernels::DeviceStream> stream;  // null: nothing is allocated yet
    Stage stages[kStages];
  };

  explicit DeviceKv(kernels::Device& device) : device_(device) {}
  absl::Status Allocate(Lane* lane);
  // Blocks of a piece: whole pages, so that pieces can be pinned one by one.
  int64_t PieceBlocks() const;
  // Whether the piece of the arena that holds `run` is pinned. The first call for a piece tries to
  // pin it.
  bool Pinned(const Run& run);
  // Blocks that a stage holds at most.
  int64_t StageBlocks() const;
  // Joins consecutive blocks of a piece into runs, none longer than a stage holds. REQUIRES:
  // ascending.
  std::vector<Run> RunsOf(int layer, absl::Span<const BlockId> blocks) const;
  std::byte* HostBytes(const Run& run) const;
  char* DeviceBytes(const Run& run) const;
  size_t Bytes(const Run& run) const;
  // All layers of `blocks`, in any order.
  std::vector<Run> RunsOf(std::vector<BlockId> blocks) const;
  // Copies all of `runs`: each copy is under way while the one before is verified.
  absl::Status Copy(Way way, absl::Span<const Run> runs, Lane& lane);
  // Enqueues a run's copy through `stage` and the device's checksums of its blocks.
  void Start(Way way, const Run& run, Lane& lane, Stage& stage);
  // Waits for a run that was started, and verifies it.
  absl::Status Finish(Way way, const Run& run, Lane& lane, Stage& stage);
  // The first block of a run whose bytes in the arena are not what the device holds; -1: none.
  int64_t DamagedBlock(const Run& run, const Stage& stage) const;

  enum class Piece : uint8_t { kUntouched, kPinned, kStaged };

  kernels::Device& device_;
  absl::Mutex pins_mutex_;
  // [num_layers][pieces of a region]
  std::vector<std::vector<Piece>> pieces_ ABSL_GUARDED_BY(pins_mutex_);
  int64_t pinned_bytes_left_ ABSL_GUARDED_BY(pins_mutex_) = kPinnedBytesMax;
  std::unique_ptr<kv::BlockArena> arena_;
  std::vector<kernels::DeviceBuffer> regions_;  // [num_layers]
  kernels::DeviceBuffer fork_pairs_;            // of the step's forks
  Lane of_steps_;                               // engine thread
  absl::Mutex fetch_mutex_;
  Lane beside_steps_ ABSL_GUARDED_BY(fetch_mutex_);
};

}  // namespace tandem::engine
