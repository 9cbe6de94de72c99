#include "common/engine/device/device_kv.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/slice_check.h"
#include "common/telemetry/log.h"
#include "kernels/api/attention.h"
#include "kernels/api/device_block_copies.h"
#include "kernels/api/device_checksum.h"
#include "kernels/api/device_ops.h"
#include "xxhash.h"

namespace tandem::engine {
namespace {

using kernels::DeviceBuffer;

// One pinned buffer: long enough for the link's full rate, at least one block.
constexpr int64_t kStageBytes = int64_t{8} << 20;
// The bytes pinned at a time: pinning them takes the host a few milliseconds.
constexpr int64_t kPieceBytes = int64_t{32} << 20;
constexpr int64_t kPageBytes = 4096;
// Attempts per copy. A momentary fault of the link does not damage a copy twice in a row.
constexpr int kAttempts = 2;

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
  std::unique_ptr<DeviceKv> kv(new DeviceKv(device));
  // The blocks are the device's. Those that are transferred by way of the host are touched.
  ASSIGN_OR_RETURN(kv->arena_,
                   kv::BlockArena::Create(layout, num_blocks, kv::ArenaMemory::kUnreserved));
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    ASSIGN_OR_RETURN(kv->regions_.emplace_back(),
                     device.Allocate(DeviceBuffer::Kind::kDevice,
                                     static_cast<size_t>(num_blocks * layout.layer_block_bytes)));
  }
  const int64_t pieces = (num_blocks + kv->PieceBlocks() - 1) / kv->PieceBlocks();
  {
    absl::MutexLock lock(&kv->pins_mutex_);
    kv->pieces_.assign(static_cast<size_t>(layout.num_layers),
                       std::vector<Piece>(static_cast<size_t>(pieces), Piece::kUntouched));
  }
  RETURN_IF_ERROR(kv->Allocate(&kv->of_steps_));
  return kv;
}

absl::Status DeviceKv::Allocate(Lane* lane) {
  const size_t stage_bytes =
      static_cast<size_t>(StageBlocks() * arena_->layout().layer_block_bytes);
  const size_t checksum_bytes = static_cast<size_t>(StageBlocks()) * sizeof(uint64_t);
  for (Stage& stage : lane->stages) {
    ASSIGN_OR_RETURN(stage.memory, device_.Allocate(DeviceBuffer::Kind::kPinnedHost, stage_bytes));
    ASSIGN_OR_RETURN(stage.device_checksums,
                     device_.Allocate(DeviceBuffer::Kind::kDevice, checksum_bytes));
    ASSIGN_OR_RETURN(stage.checksums,
                     device_.Allocate(DeviceBuffer::Kind::kPinnedHost, checksum_bytes));
    ASSIGN_OR_RETURN(stage.done, device_.NewEvent());
  }
  ASSIGN_OR_RETURN(lane->stream, device_.NewStream());
  return absl::OkStatus();
}

DeviceKv::~DeviceKv() {
  absl::MutexLock lock(&pins_mutex_);
  for (size_t layer = 0; layer < pieces_.size(); ++layer) {
    for (size_t piece = 0; piece < pieces_[layer].size(); ++piece) {
      if (pieces_[layer][piece] != Piece::kPinned) continue;
      const int64_t block = static_cast<int64_t>(piece) * PieceBlocks();
      device_.Unpin(HostBytes({static_cast<int>(layer), block, 1}));
    }
  }
}

int64_t DeviceKv::PieceBlocks() const {
  const int64_t block_bytes = arena_->layout().layer_block_bytes;
  const int64_t whole_pages = kPageBytes / std::gcd(kPageBytes, block_bytes);
  return std::max<int64_t>(1, kPieceBytes / (whole_pages * block_bytes)) * whole_pages;
}

bool DeviceKv::Pinned(const Run& run) {
  absl::MutexLock lock(&pins_mutex_);
  const int64_t index = run.first_block / PieceBlocks();
  Piece& piece = pieces_[static_cast<size_t>(run.layer)][static_cast<size_t>(index)];
  if (piece != Piece::kUntouched) return piece == Piece::kPinned;
  const int64_t first = index * PieceBlocks();
  const Run whole = {run.layer, first, std::min(PieceBlocks(), arena_->num_blocks() - first)};
  const int64_t bytes = static_cast<int64_t>(Bytes(whole));
  piece = Piece::kStaged;
  if (bytes > pinned_bytes_left_) return false;
  const absl::Status status = device_.Pin(HostBytes(whole), static_cast<size_t>(bytes));
  if (!status.ok()) {
    Log(LogLevel::kWarning, "cannot pin more of the arena, staging further KV copies",
        {{"pinned_bytes", kPinnedBytesMax - pinned_bytes_left_}, {"error", status.ToString()}});
    pinned_bytes_left_ = 0;
    return false;
  }
  pinned_bytes_left_ -= bytes;
  piece = Piece::kPinned;
  return true;
}

int64_t DeviceKv::StageBlocks() const {
  return std::max<int64_t>(1, kStageBytes / arena_->layout().layer_block_bytes);
}

std::vector<DeviceKv::Run> DeviceKv::RunsOf(int layer, absl::Span<const BlockId> blocks) const {
  const int64_t longest = StageBlocks();
  std::vector<Run> runs;
  for (BlockId block : blocks) {
    if (!runs.empty() && runs.back().first_block + runs.back().num_blocks == block.value() &&
        runs.back().num_blocks < longest && block.value() % PieceBlocks() != 0) {
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

int64_t DeviceKv::copies_awaited() const {
  absl::MutexLock lock(&copies_mutex_);
  return copies_awaited_;
}

template <typename ForEach>
std::vector<BlockId> DeviceKv::BeginCopies(const ForEach& for_each) {
  std::vector<BlockId> arrived;
  absl::MutexLock lock(&copies_mutex_);
  // Read with the lock held: here, and when Await evaluates the condition.
  const auto none_copied = [&for_each, copying = &copying_] {
    bool none = true;
    // Mostly empty.
    if (!copying->empty())
      for_each([&](BlockId block, bool) { none = none && !copying->contains(block); });
    return none;
  };
  if (!none_copied()) {
    ++copies_awaited_;
    copies_mutex_.Await(absl::Condition(&none_copied));
  }
  for_each([&](BlockId block, bool is_read) {
    if (arena_->TakeArrived(block) && is_read) arrived.push_back(block);
  });
  copying_.insert(arrived.begin(), arrived.end());
  return arrived;
}

void DeviceKv::EndCopies(absl::Span<const BlockId> blocks, const absl::Status& status) {
  absl::MutexLock lock(&copies_mutex_);
  for (const BlockId block : blocks) {
    if (!status.ok()) arena_->MarkArrived(block);
    copying_.erase(block);
  }
}

absl::Status DeviceKv::FetchArrived(absl::Span<const SequenceSlice> slices) {
  const kv::BlockLayout& layout = arena_->layout();
  const std::vector<BlockId> arrived = BeginCopies([&](const auto& visit) {
    for (const SequenceSlice& slice : slices) {
      const bool forked = slice.forked_from.has_value();
      const int64_t lent = HasLent(slice)
                               ? slice.remote->lent.back().units.end *
                                     int64_t{kernels::kPartitionTokens} / layout.block_tokens
                               : 0;
      if (forked) visit(*slice.forked_from, true);
      const int64_t read_end =
          forked ? slice.num_computed / layout.block_tokens : layout.BlocksFor(slice.num_computed);
      const int64_t end = layout.BlocksFor(slice.num_computed + slice.num_new);
      for (int64_t i = lent; i < end; ++i)
        visit(slice.blocks[static_cast<size_t>(i)], i < read_end);
    }
  });
  if (arrived.empty()) return absl::OkStatus();
  const absl::Status status = Copy(Way::kToDevice, RunsOf(arrived), of_steps_);
  EndCopies(arrived, status);
  return status;
}

absl::Status DeviceKv::FetchBlocks(absl::Span<const BlockId> blocks) {
  const std::vector<BlockId> arrived = BeginCopies([&](const auto& visit) {
    for (const BlockId block : blocks) visit(block, true);
  });
  if (arrived.empty()) return absl::OkStatus();
  absl::MutexLock lock(&fetch_mutex_);
  absl::Status status;
  if (beside_steps_.stream == nullptr) status = Allocate(&beside_steps_);
  if (status.ok()) status = Copy(Way::kToDevice, RunsOf(arrived), beside_steps_);
  EndCopies(arrived, status);
  return status;
}

std::vector<DeviceKv::Run> DeviceKv::RunsOf(std::vector<BlockId> blocks) const {
  std::sort(blocks.begin(), blocks.end());
  std::vector<Run> runs;
  for (int layer = 0; layer < arena_->layout().num_layers; ++layer) {
    const std::vector<Run> of_layer = RunsOf(layer, blocks);
    runs.insert(runs.end(), of_layer.begin(), of_layer.end());
  }
  return runs;
}

absl::Status DeviceKv::Copy(Way way, absl::Span<const Run> runs, Lane& lane) {
  for (size_t i = 0; i < runs.size() + 1; ++i) {
    if (i < runs.size()) Start(way, runs[i], lane, lane.stages[i % kStages]);
    if (i > 0) RETURN_IF_ERROR(Finish(way, runs[i - 1], lane, lane.stages[(i - 1) % kStages]));
  }
  return lane.stream->status();
}

void DeviceKv::Start(Way way, const Run& run, Lane& lane, Stage& stage) {
  const bool pinned = Pinned(run);
  void* host = pinned ? static_cast<void*>(HostBytes(run)) : stage.memory.data();
  if (way == Way::kToHost) {
    lane.stream->CopyOut(host, DeviceBytes(run), Bytes(run));
  } else {
    if (!pinned) std::memcpy(host, HostBytes(run), Bytes(run));
    lane.stream->CopyIn(DeviceBytes(run), host, Bytes(run));
  }
  kernels::DeviceChecksumArgs args;
  args.base = DeviceBytes(run);
  args.stride_bytes = args.bytes = arena_->layout().layer_block_bytes;
  args.count = static_cast<int32_t>(run.num_blocks);
  args.checksums = stage.device_checksums.as<uint64_t>();
  device_.ops().checksum(args, *lane.stream);
  lane.stream->CopyOut(stage.checksums.data(), stage.device_checksums.data(),
                       static_cast<size_t>(run.num_blocks) * sizeof(uint64_t));
  lane.stream->Record(*stage.done);
}

absl::Status DeviceKv::Finish(Way way, const Run& run, Lane& lane, Stage& stage) {
  for (int attempt = 1;; ++attempt) {
    RETURN_IF_ERROR(stage.done->Synchronize());
    RETURN_IF_ERROR(lane.stream->status());
    if (way == Way::kToHost && !Pinned(run))
      std::memcpy(HostBytes(run), stage.memory.data(), Bytes(run));
    const int64_t damaged = DamagedBlock(run, stage);
    if (damaged < 0) return absl::OkStatus();
    const char* where = way == Way::kToHost ? "to the host" : "to the device";
    Log(LogLevel::kWarning, "KV copy damaged",
        {{"block", damaged}, {"layer", run.layer}, {"way", where}, {"attempt", attempt}});
    if (attempt == kAttempts) {
      return absl::DataLossError(absl::StrCat("block ", damaged, " layer ", run.layer,
                                              ": the copy ", where, " differs from its source ",
                                              attempt, " times"));
    }
    Start(way, run, lane, stage);
  }
}

int64_t DeviceKv::DamagedBlock(const Run& run, const Stage& stage) const {
  const size_t bytes = static_cast<size_t>(arena_->layout().layer_block_bytes);
  for (int64_t i = 0; i < run.num_blocks; ++i) {
    const std::byte* block = HostBytes(run) + static_cast<size_t>(i) * bytes;
    if (XXH3_64bits(block, bytes) != stage.checksums.as<uint64_t>()[i]) return run.first_block + i;
  }
  return -1;
}

absl::Status DeviceKv::CopyForks(absl::Span<const BlockCopy> copies,
                                 kernels::DeviceStream& stream) {
  if (copies.empty()) return absl::OkStatus();
  std::vector<kernels::BlockPair> pairs;
  for (const BlockCopy& copy : copies)
    pairs.push_back({.from = copy.from.value(), .to = copy.to.value()});
  const size_t bytes = pairs.size() * sizeof(kernels::BlockPair);
  if (fork_pairs_.bytes() < bytes) {
    ASSIGN_OR_RETURN(fork_pairs_, device_.Allocate(DeviceBuffer::Kind::kDevice, 2 * bytes));
  }
  stream.CopyIn(fork_pairs_.data(), pairs.data(), bytes);  // waits, because `pairs` is not pinned
  for (int layer = 0; layer < arena_->layout().num_layers; ++layer) {
    device_.ops().copy_blocks({.base = Region(layer),
                               .block_bytes = arena_->layout().layer_block_bytes,
                               .pairs = fork_pairs_.as<kernels::BlockPair>(),
                               .num_pairs = static_cast<int32_t>(pairs.size())},
                              stream);
  }
  return stream.status();
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
  of_steps_.stream->Wait(ready);
  return Copy(Way::kToHost, RunsOf(layer, blocks), of_steps_);
}

}  // namespace tandem::engine
