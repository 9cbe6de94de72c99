#include "kernels/cuda/backend/emulated_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/api/device_ops.h"
#include "kernels/cuda/backend/op_table.h"

namespace tandem::kernels::emulated {
namespace {

constexpr DeviceOps kOps = PortableOps("emulated-mma16816-v3");
constexpr DeviceOps kHopperOps = HopperOps("emulated-wgmma16-v4");

class EmulatedDevice final : public Device {
 public:
  EmulatedDevice(uint64_t seed, EmulatedChip chip)
      : seed_(seed), ops_(chip == EmulatedChip::kHopper ? kHopperOps : kOps) {
    streams_.starts_early = chip == EmulatedChip::kHopper;
    properties_.name = "emulated";
    properties_.software = "the thread block emulator";
    properties_.compute_major = chip == EmulatedChip::kHopper ? 9 : 8;
    properties_.multiprocessors = 2;
    properties_.host_addressable = true;
    properties_.memory_bytes = int64_t{1} << 30;
    properties_.shared_bytes_per_block_max = (chip == EmulatedChip::kHopper ? 227 : 160) << 10;
    properties_.shared_bytes_per_multiprocessor = (chip == EmulatedChip::kHopper ? 228 : 164) << 10;
  }

  void set_faults(const CopyFaults& faults) { faults_ = faults; }
  void set_bytes_of_others(int64_t bytes) { bytes_of_others_ = bytes; }
  void set_granule(int64_t bytes) { granule_ = bytes; }
  void refuse(int before, int count) {
    granted_before_ = before;
    refusals_ = count;
  }
  void refuse_graphs(int count) { streams_.refused_graphs = count; }
  void hide_from_host() { properties_.host_addressable = false; }
  void set_clock(Clock clock) { clock_ = std::move(clock); }

  const DeviceProperties& properties() const override { return properties_; }
  const DeviceCalls& calls() const { return calls_; }
  const DeviceOps& ops() const override { return ops_; }
  absl::StatusOr<int64_t> FreeBytes() override {
    return properties_.memory_bytes - taken_bytes() - bytes_of_others_;
  }

  absl::StatusOr<DeviceBuffer> Allocate(DeviceBuffer::Kind kind, size_t bytes) override {
    if (bytes == 0) return DeviceBuffer();
    const bool on_device = kind == DeviceBuffer::Kind::kDevice;
    if (IsRefused() || (on_device && granule_ > 0 && Taken(bytes) > FreeBytes().value())) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the emulated device has no ", bytes, " bytes"));
    }
    // Exactly `bytes` long, so that a sanitizer sees accesses beyond it; NaN until written.
    void* data = nullptr;
    if (posix_memalign(&data, 256, bytes) != 0) {
      return absl::ResourceExhaustedError("the host has no memory for the emulated device");
    }
    std::memset(data, 0xff, bytes);
    if (on_device) memory_[data] = bytes;
    return DeviceBuffer(this, kind, data, bytes);
  }
  // As strict as CUDA: a piece begins on a page's boundary, and no page is pinned twice.
  absl::Status Pin(void* host, size_t bytes) override {
    constexpr uintptr_t kPage = 4096;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(host);
    const uintptr_t end = (begin + bytes + kPage - 1) / kPage * kPage;
    if (begin % kPage != 0)
      return absl::InvalidArgumentError("the address is not a page's boundary");
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

  absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream(StreamPriority) override {
    return std::unique_ptr<DeviceStream>(
        std::make_unique<EmulatedStream>(seed_, &calls_, &faults_, &clock_, &streams_));
  }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() override {
    return std::unique_ptr<DeviceEvent>(std::make_unique<EmulatedEvent>());
  }

 private:
  void Free(DeviceBuffer::Kind, void* data) override {
    streams_.RunHeld();
    memory_.erase(data);
    std::free(data);
  }
  bool IsRefused() {
    if (granted_before_ > 0) {
      --granted_before_;
      return false;
    }
    if (refusals_ == 0) return false;
    --refusals_;
    return true;
  }
  // What an allocation takes of the device's memory.
  int64_t Taken(size_t bytes) const {
    const int64_t granule = std::max<int64_t>(1, granule_);
    return (static_cast<int64_t>(bytes) + granule - 1) / granule * granule;
  }
  int64_t taken_bytes() const {
    int64_t taken = 0;
    for (const auto& [data, bytes] : memory_) taken += Taken(bytes);
    return taken;
  }

  const uint64_t seed_;
  const DeviceOps& ops_;
  CopyFaults faults_;
  int64_t bytes_of_others_ = 0;
  int64_t granule_ = 0;  // 0: no limit
  int granted_before_ = 0, refusals_ = 0;
  std::map<void*, size_t> memory_;  // the buffers in device memory
  Clock clock_;
  std::map<uintptr_t, uintptr_t> pins_;  // first address to one beyond the last
  size_t pins_max_ = 1 << 20;
  DeviceProperties properties_;
  DeviceCalls calls_;  // streams go before their device
  StreamsOfDevice streams_;
};

}  // namespace

DeviceCalls CallsOf(const Device& device) {
  return static_cast<const EmulatedDevice&>(device).calls();
}

void DamageCopies(Device& device, int count, size_t bytes_min) {
  static_cast<EmulatedDevice&>(device).set_faults({count, bytes_min});
}

void SetBytesOfOthers(Device& device, int64_t bytes) {
  static_cast<EmulatedDevice&>(device).set_bytes_of_others(bytes);
}

void LimitMemory(Device& device, int64_t granule_bytes) {
  static_cast<EmulatedDevice&>(device).set_granule(granule_bytes);
}

void RefuseAllocations(Device& device, int before, int count) {
  static_cast<EmulatedDevice&>(device).refuse(before, count);
}

void RefuseGraphs(Device& device, int count) {
  static_cast<EmulatedDevice&>(device).refuse_graphs(count);
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

std::unique_ptr<Device> NewEmulatedDevice(uint64_t seed, EmulatedChip chip) {
  return std::make_unique<EmulatedDevice>(seed, chip);
}

}  // namespace tandem::kernels::emulated
