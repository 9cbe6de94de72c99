// PairChannels through NCCL (kernels/api/pair_channel.h): each channel is a non-blocking
// communicator of two ranks, with the sender as rank 0. NCCL moves a payload from its slot's device
// memory to the other end's. Where slots are pinned host memory, the sender first copies it to the
// device, and the receiver copies it to the host at the end.
#include <cuda_runtime.h>

#include <cstring>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/api/device.h"
#include "kernels/api/pair_channel.h"
#include "kernels/cuda/gpu/cuda_stream.h"
#include "kernels/cuda/nccl/nccl_api.h"

namespace tandem::kernels {
namespace cuda {
namespace {

// Blocks that NCCL may keep on the device for one channel while it waits for the other end. They
// take multiprocessors from the engine's steps for as long.
constexpr int kBlocksMax = 4;

struct NcclSlot {
  enum class State { kIdle, kWaiting, kRunning };
  State state = State::kIdle;
  size_t bytes = 0;
  std::byte* host = nullptr;  // pinned; null where slots are device memory
  void* device = nullptr;
  cudaEvent_t done = nullptr;
};

// A channel's NCCL and CUDA resources, and how they are freed.
struct NcclResources {
  const NcclApi* nccl = nullptr;
  int ordinal = 0;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<NcclSlot> slots;

  // May hang when the other end died during an operation.
  void Release() {
    cudaSetDevice(ordinal);
    if (communicator != nullptr) nccl->comm_abort(communicator);
    if (stream != nullptr) cudaStreamDestroy(stream);
    for (NcclSlot& slot : slots) {
      if (slot.done != nullptr) cudaEventDestroy(slot.done);
      if (slot.device != nullptr) cudaFree(slot.device);
      if (slot.host != nullptr) cudaFreeHost(slot.host);
    }
  }
};

class NcclChannel final : public PairChannel {
 public:
  NcclChannel(const NcclApi& nccl, int ordinal, bool sender) : sender_(sender) {
    resources_.nccl = &nccl;
    resources_.ordinal = ordinal;
  }
  // Aborting can hang, and frees memory that the device may still read. So it runs on a thread of
  // its own, for which the process does not wait.
  ~NcclChannel() override {
    std::thread([resources = std::move(resources_)]() mutable { resources.Release(); }).detach();
  }

  absl::Status Init(const ncclUniqueId& id, int slots, size_t slot_bytes, SlotMemory memory) {
    Check("cudaSetDevice", cudaSetDevice(resources_.ordinal));
    int normal = 0, urgent = 0;
    Check("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&normal, &urgent));
    // Behind the engine's steps.
    Check("cudaStreamCreateWithPriority",
          cudaStreamCreateWithPriority(&resources_.stream, cudaStreamNonBlocking, normal));
    resources_.slots.resize(static_cast<size_t>(slots));
    slot_bytes_ = slot_bytes;
    for (NcclSlot& slot : resources_.slots) {
      if (memory == SlotMemory::kHost) {
        void* host = nullptr;
        Check("cudaHostAlloc", cudaHostAlloc(&host, slot_bytes, cudaHostAllocDefault));
        slot.host = static_cast<std::byte*>(host);
      }
      Check("cudaMalloc", cudaMalloc(&slot.device, slot_bytes));
      Check("cudaEventCreateWithFlags",
            cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming));
    }
    if (!status_.ok()) return status_;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = kBlocksMax;
    Check("ncclCommInitRankConfig", resources_.nccl->comm_init_rank_config(
                                        &resources_.communicator, 2, id, sender_ ? 0 : 1, &config));
    return status_;
  }

  State Progress() override {
    if (!status_.ok()) return State::kFailed;
    Check("cudaSetDevice", cudaSetDevice(resources_.ordinal));
    if (Settled()) {
      open_ = true;
      if (issuing_.has_value()) FinishIssue();
      while (status_.ok() && !waiting_.empty() && !issuing_.has_value()) Issue();
      for (NcclSlot& slot : resources_.slots) Poll(slot);
    }
    if (!status_.ok()) return State::kFailed;
    return open_ ? State::kOpen : State::kOpening;
  }
  const absl::Status& status() const override { return status_; }

  absl::Span<std::byte> slot(int index) override {
    const NcclSlot& slot = At(index);
    return absl::MakeSpan(slot.host != nullptr ? slot.host : static_cast<std::byte*>(slot.device),
                          slot_bytes_);
  }
  void Start(int slot, size_t bytes) override {
    At(slot).state = NcclSlot::State::kWaiting;
    At(slot).bytes = bytes;
    waiting_.push_back(slot);
    Progress();
  }
  bool idle(int slot) const override {
    return resources_.slots[static_cast<size_t>(slot)].state == NcclSlot::State::kIdle;
  }

 private:
  NcclSlot& At(int slot) { return resources_.slots[static_cast<size_t>(slot)]; }
  // Keep the first failure.
  void Check(const char* call, cudaError_t error) {
    if (status_.ok()) status_ = ToStatus(call, error);
  }
  void Check(const char* call, ncclResult_t result) {
    if (status_.ok()) status_ = resources_.nccl->ToStatus(call, result);
  }

  // Whether the communicator has finished the last call, so that the next one is allowed.
  bool Settled() {
    ncclResult_t result = ncclInProgress;
    Check("ncclCommGetAsyncError",
          resources_.nccl->comm_get_async_error(resources_.communicator, &result));
    Check("NCCL", result);
    return status_.ok() && result == ncclSuccess;
  }

  void Issue() {
    const int index = waiting_.front();
    waiting_.pop_front();
    NcclSlot& slot = At(index);
    issuing_ = index;
    ncclResult_t result = ncclSuccess;
    if (sender_) {
      if (slot.host != nullptr) {
        Check("cudaMemcpyAsync", cudaMemcpyAsync(slot.device, slot.host, slot.bytes,
                                                 cudaMemcpyHostToDevice, resources_.stream));
      }
      result = resources_.nccl->send(slot.device, slot.bytes, ncclChar, /*peer=*/1,
                                     resources_.communicator, resources_.stream);
      Check("ncclSend", result);
    } else {
      result = resources_.nccl->recv(slot.device, slot.bytes, ncclChar, /*peer=*/0,
                                     resources_.communicator, resources_.stream);
      Check("ncclRecv", result);
    }
    if (result == ncclSuccess || Settled()) FinishIssue();
  }

  // NCCL has enqueued the call on the stream; later work runs after it.
  void FinishIssue() {
    NcclSlot& slot = At(*std::exchange(issuing_, std::nullopt));
    if (!sender_ && slot.host != nullptr) {
      Check("cudaMemcpyAsync", cudaMemcpyAsync(slot.host, slot.device, slot.bytes,
                                               cudaMemcpyDeviceToHost, resources_.stream));
    }
    Check("cudaEventRecord", cudaEventRecord(slot.done, resources_.stream));
    slot.state = NcclSlot::State::kRunning;
  }

  void Poll(NcclSlot& slot) {
    if (slot.state != NcclSlot::State::kRunning) return;
    const cudaError_t result = cudaEventQuery(slot.done);
    if (result == cudaErrorNotReady) return;
    Check("cudaEventQuery", result);
    if (status_.ok()) slot.state = NcclSlot::State::kIdle;
  }

  const bool sender_;
  NcclResources resources_;
  size_t slot_bytes_ = 0;
  bool open_ = false;
  std::deque<int> waiting_;     // slots in the order of their Start
  std::optional<int> issuing_;  // NCCL's call for it is not in the stream yet
  absl::Status status_;
};

class NcclChannels final : public PairChannels {
 public:
  NcclChannels(const NcclApi& nccl, int ordinal, int slots, size_t slot_bytes, SlotMemory memory)
      : nccl_(nccl), ordinal_(ordinal), slots_(slots), slot_bytes_(slot_bytes), memory_(memory) {}

  const std::string& name() const override { return name_; }
  int slots() const override { return slots_; }
  size_t slot_bytes() const override { return slot_bytes_; }
  SlotMemory slot_memory() const override { return memory_; }

  absl::StatusOr<std::string> NewId() override {
    ncclUniqueId id;
    const absl::Status status = nccl_.ToStatus("ncclGetUniqueId", nccl_.get_unique_id(&id));
    if (!status.ok()) return status;
    return std::string(id.internal, sizeof id.internal);
  }

  absl::StatusOr<std::unique_ptr<PairChannel>> Open(const std::string& id, Side side) override {
    ncclUniqueId unique;
    if (id.size() != sizeof unique.internal) {
      return absl::InvalidArgumentError(
          absl::StrCat("NCCL's id has ", id.size(), " bytes, expected ", sizeof unique.internal));
    }
    std::memcpy(unique.internal, id.data(), id.size());
    auto channel = std::make_unique<NcclChannel>(nccl_, ordinal_, side == Side::kSender);
    const absl::Status status = channel->Init(unique, slots_, slot_bytes_, memory_);
    if (!status.ok()) return status;
    return channel;
  }

 private:
  const NcclApi& nccl_;
  const std::string name_ = "nccl";
  const int ordinal_;
  const int slots_;
  const size_t slot_bytes_;
  const SlotMemory memory_;
};

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<PairChannels>> OpenNcclChannels(int device_ordinal, int slots,
                                                               size_t slot_bytes,
                                                               SlotMemory memory) {
  if (device_ordinal < 0 || device_ordinal >= CountCudaDevices()) {
    return absl::UnavailableError(
        absl::StrCat("NCCL needs CUDA device ", device_ordinal, ": ", DescribeCuda()));
  }
  const absl::StatusOr<const cuda::NcclApi*> nccl = cuda::LoadNccl();
  if (!nccl.ok()) return nccl.status();
  return std::make_unique<cuda::NcclChannels>(**nccl, device_ordinal, slots, slot_bytes, memory);
}

}  // namespace tandem::kernels
