#include "kernels/cuda/emulator/emulated_device.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/api/device_ops.h"
#include "kernels/cuda/gemm_wgmma_config.h"
#include "kernels/cuda/kernels.h"

namespace tandem::kernels::emulated {
namespace {

using Work = std::function<void(uint64_t)>;

constexpr DeviceOps kOps = {
    .numerics = "emulated-mma16816-v2",
    .embed = Embed,
    .rms_norm = RmsNorm,
    .rope_kv = RopeKv,
    .gated = Gated,
    .quantise = Quantise,
    .gemm = Gemm,
    .gemm_tile = gemm::DescribeTile,
    .attention = Attention,
    .copy_blocks = CopyBlocks,
    .move_cells = MoveCells,
    .checksum = Checksum,
    .sample = Sample,
    .route_experts = RouteExperts,
    .sort_by_expert = SortByExpert,
    .grouped_gemm = GroupedGemm,
    .combine_experts = CombineExperts,
};

constexpr DeviceOps HopperOps() {
  DeviceOps ops = kOps;
  ops.numerics = "emulated-wgmma16-v2";
  ops.gemm = WgmmaGemm;
  ops.gemm_tile = gemm::DescribeTileOnHopper;
  ops.attention = WgmmaAttention;
  return ops;
}
constexpr DeviceOps kHopperOps = HopperOps();

class EmulatedGraph final : public DeviceGraph {
 public:
  explicit EmulatedGraph(std::vector<Work> work) : work(std::move(work)) {}
  const std::vector<Work> work;
};

using Clock = std::function<float()>;

class EmulatedEvent final : public DeviceEvent {
 public:
  absl::Status Synchronize() override { return absl::OkStatus(); }
  absl::StatusOr<float> MillisecondsSince(DeviceEvent& start) override {
    const std::optional<float> from = static_cast<EmulatedEvent&>(start).recorded_ms;
    if (!recorded_ms.has_value() || !from.has_value()) {
      return absl::UnimplementedError("the emulated device has no clock");
    }
    return *recorded_ms - *from;
  }

  std::optional<float> recorded_ms;
};

// Copies that are to go wrong: see DamageCopies.
struct CopyFaults {
  int count = 0;
  size_t bytes_min = 0;
};

class EmulatedStream final : public DeviceStream {
 public:
  EmulatedStream(uint64_t seed, DeviceCalls* calls, CopyFaults* faults, const Clock* clock)
      : seed_(seed), calls_(*calls), faults_(faults), clock_(*clock) {}

  void Launch(int64_t blocks, Work work) {
    if (captured_ == nullptr) {
      ++calls_.kernels;
      calls_.blocks += blocks;
    }
    Add(std::move(work));
  }

  void Add(Work work) {
    if (captured_ != nullptr) {
      captured_->push_back(std::move(work));
    } else {
      work(++seed_);
    }
  }

  void CopyIn(void* device, const void* host, size_t bytes) override {
    if (captured_ == nullptr) calls_.bytes_in += static_cast<int64_t>(bytes);
    Copy(device, host, bytes);
  }
  void CopyOut(void* host, const void* device, size_t bytes) override {
    if (captured_ == nullptr) calls_.bytes_out += static_cast<int64_t>(bytes);
    Copy(host, device, bytes);
  }
  void CopyWithin(void* to, const void* from, size_t bytes) override { Copy(to, from, bytes); }
  void Fill(void* device, int byte, size_t bytes) override {
    if (captured_ == nullptr) ++calls_.copies;
    Add([device, byte, bytes](uint64_t) { std::memset(device, byte, bytes); });
  }
  void Record(DeviceEvent& event) override {
    ++calls_.events;
    if (clock_ != nullptr) static_cast<EmulatedEvent&>(event).recorded_ms = clock_();
  }
  void Wait(DeviceEvent&) override { ++calls_.events; }

  absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(absl::FunctionRef<void()> enqueue) override {
    std::vector<Work> work;
    captured_ = &work;
    enqueue();
    captured_ = nullptr;
    return std::unique_ptr<DeviceGraph>(std::make_unique<EmulatedGraph>(std::move(work)));
  }
  void Launch(DeviceGraph& graph) override {
    ++calls_.graphs;
    for (const Work& work : static_cast<EmulatedGraph&>(graph).work) Add(work);
  }
  absl::Status Synchronize() override {
    ++calls_.synchronises;
    return absl::OkStatus();
  }
  const absl::Status& status() const override { return status_; }

 private:
  void Copy(void* to, const void* from, size_t bytes) {
    if (captured_ == nullptr) ++calls_.copies;
    Add([to, from, bytes, faults = faults_](uint64_t seed) {
      std::memcpy(to, from, bytes);
      if (faults->count == 0 || bytes < faults->bytes_min) return;
      --faults->count;
      static_cast<char*>(to)[seed % bytes] ^= 1;
    });
  }

  uint64_t seed_;
  DeviceCalls& calls_;
  CopyFaults* const faults_;
  const Clock& clock_;
  std::vector<Work>* captured_ = nullptr;
  const absl::Status status_;
};

class EmulatedDevice final : public Device {
 public:
  EmulatedDevice(uint64_t seed, EmulatedChip chip)
      : seed_(seed), ops_(chip == EmulatedChip::kHopper ? kHopperOps : kOps) {
    properties_.name = "emulated";
    properties_.software = "the thread block emulator";
    properties_.compute_major = chip == EmulatedChip::kHopper ? 9 : 8;
    properties_.multiprocessors = 2;
    properties_.host_addressable = true;
    properties_.memory_bytes = int64_t{1} << 30;
    properties_.shared_bytes_per_block_max = (chip == EmulatedChip::kHopper ? 227 : 160) << 10;
  }

  void set_faults(const CopyFaults& faults) { faults_ = faults; }
  void hide_from_host() { properties_.host_addressable = false; }
  void set_clock(Clock clock) { clock_ = std::move(clock); }

  const DeviceProperties& properties() const override { return properties_; }
  const DeviceCalls& calls() const { return calls_; }
  const DeviceOps& ops() const override { return ops_; }
  absl::StatusOr<int64_t> FreeBytes() override { return properties_.memory_bytes; }

  absl::StatusOr<DeviceBuffer> Allocate(DeviceBuffer::Kind kind, size_t bytes) override {
    if (bytes == 0) return DeviceBuffer();
    // Exactly as long as asked for, so that a sanitizer sees accesses beyond it; NaN until written.
    void* data = nullptr;
    if (posix_memalign(&data, 256, bytes) != 0) {
      return absl::ResourceExhaustedError("the host refuses memory for the emulated device");
    }
    std::memset(data, 0xff, bytes);
    return DeviceBuffer(this, kind, data, bytes);
  }
  // As strict as CUDA: whole pages, and none twice.
  absl::Status Pin(void* host, size_t bytes) override {
    constexpr uintptr_t kPage = 4096;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(host);
    const uintptr_t end = (begin + bytes + kPage - 1) / kPage * kPage;
    if (begin % kPage != 0) return absl::InvalidArgumentError("not a page's boundary");
    for (const auto& [other, other_end] : pins_) {
      if (begin < other_end && other < end) return absl::InvalidArgumentError("pinned already");
    }
    if (pins_.size() >= pins_max_) return absl::ResourceExhaustedError("no more pins");
    pins_[begin] = end;
    return absl::OkStatus();
  }
  void Unpin(void* host) override { pins_.erase(reinterpret_cast<uintptr_t>(host)); }
  size_t num_pins() const { return pins_.size(); }
  void set_pins_max(size_t pins) { pins_max_ = pins; }

  absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream() override {
    return std::unique_ptr<DeviceStream>(
        std::make_unique<EmulatedStream>(seed_, &calls_, &faults_, &clock_));
  }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() override {
    return std::unique_ptr<DeviceEvent>(std::make_unique<EmulatedEvent>());
  }

 private:
  void Free(DeviceBuffer::Kind, void* data) override { std::free(data); }

  const uint64_t seed_;
  const DeviceOps& ops_;
  CopyFaults faults_;
  Clock clock_;
  std::map<uintptr_t, uintptr_t> pins_;  // first address to one beyond the last
  size_t pins_max_ = 1 << 20;
  DeviceProperties properties_;
  DeviceCalls calls_;  // streams go before their device
};

}  // namespace

void DamageCopies(Device& device, int count, size_t bytes_min) {
  static_cast<EmulatedDevice&>(device).set_faults({count, bytes_min});
}

void HideFromHost(Device& device) { static_cast<EmulatedDevice&>(device).hide_from_host(); }

void SetClock(Device& device, std::function<float()> now_ms) {
  static_cast<EmulatedDevice&>(device).set_clock(std::move(now_ms));
}

size_t NumPins(const Device& device) {
  return static_cast<const EmulatedDevice&>(device).num_pins();
}
void LimitPins(Device& device, size_t pins) {
  static_cast<EmulatedDevice&>(device).set_pins_max(pins);
}

void Enqueue(DeviceStream& stream, int64_t blocks, std::function<void(uint64_t seed)> work) {
  static_cast<EmulatedStream&>(stream).Launch(blocks, std::move(work));
}

DeviceCalls CallsOf(const Device& device) {
  return static_cast<const EmulatedDevice&>(device).calls();
}

std::unique_ptr<Device> NewEmulatedDevice(uint64_t seed, EmulatedChip chip) {
  return std::make_unique<EmulatedDevice>(seed, chip);
}

}  // namespace tandem::kernels::emulated
