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
//
// A step and other threads may need the same block at the same time: a creditor's blocks are also
// prefix cache. The first of them takes the block's mark (BlockArena::TakeArrived) and copies it.
// The others see that the copy is under way, and wait for its end.
// Thread safety: the engine thread; any thread calls FetchBlocks and copies_awaited.
// Invariants: at most one copy of a block to the device is under way. Its mark is taken, and it is
// put into copying_, in one critical section. It leaves copying_ when the copy has been verified,
// or has its mark again.
// Owner: the device engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
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

  // Copies blocks that arrived in the arena and that `slices` read or fork to the device. When it
  // returns without an error, they are there, copied by this thread or another, and no copy of a
  // block that `slices` read or write is under way. It does not copy blocks that a slice writes
  // from their first token on, nor those that forks are copied to. After an error the blocks count
  // as arrived again. Errors: kDataLoss for a block whose copy differs twice; the device's.
  absl::Status FetchArrived(absl::Span<const SequenceSlice> slices);
  // The same for `blocks`: a creditor's, and those that storage brought back before a sequence
  // takes them. A running step may read them, because it has fetched them; it writes none of them.
  // A step that begins meanwhile waits for these copies only if it needs one of the blocks.
  absl::Status FetchBlocks(absl::Span<const BlockId> blocks);
  // Calls of either that waited for copies of another, since the start. Any thread.
  int64_t copies_awaited() const;

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
  // Waits until no block that `for_each` names is being copied to the device. Then takes the marks
  // of all, and returns the blocks to copy, which are in copying_ from then on: those that had
  // arrived and are read. `for_each` calls its argument with each BlockId and whether it is read,
  // and may name a block twice.
  template <typename ForEach>
  std::vector<BlockId> BeginCopies(const ForEach& for_each) ABSL_LOCKS_EXCLUDED(copies_mutex_);
  // Ends what BeginCopies began. Unless `status` is OK, the blocks are marked as arrived.
  void EndCopies(absl::Span<const BlockId> blocks, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(copies_mutex_);
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
  mutable absl::Mutex copies_mutex_;            // never held during a copy
  // Bound: the arena's blocks.
  absl::flat_hash_set<BlockId> copying_ ABSL_GUARDED_BY(copies_mutex_);  // to the device
  int64_t copies_awaited_ ABSL_GUARDED_BY(copies_mutex_) = 0;
  Lane of_steps_;  // engine thread
  absl::Mutex fetch_mutex_;
  Lane beside_steps_ ABSL_GUARDED_BY(fetch_mutex_);
};

}  // namespace tandem::engine
