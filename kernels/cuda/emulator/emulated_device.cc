#include "kernels/cuda/emulator/emulated_device.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/api/device_ops.h"
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
    .attention = Attention,
    .copy_blocks = CopyBlocks,
    .sample = Sample,
};

constexpr DeviceOps HopperOps() {
  DeviceOps ops = kOps;
  ops.numerics = "emulated-wgmma16-v1";
  ops.gemm = WgmmaGemm;
  ops.attention = WgmmaAttention;
  return ops;
}
constexpr DeviceOps kHopperOps = HopperOps();

class EmulatedGraph final : public DeviceGraph {
 public:
  explicit EmulatedGraph(std::vector<Work> work) : work(std::move(work)) {}
  const std::vector<Work> work;
};

class EmulatedEvent final : public DeviceEvent {
 public:
  absl::Status Synchronize() override { return absl::OkStatus(); }
  absl::StatusOr<float> MillisecondsSince(DeviceEvent&) override {
    return absl::UnimplementedError("the emulated device has no clock");
  }
};

class EmulatedStream final : public DeviceStream {
 public:
  explicit EmulatedStream(uint64_t seed) : seed_(seed) {}

  void Add(Work work) {
    if (captured_ != nullptr) {
      captured_->push_back(std::move(work));
    } else {
      work(++seed_);
    }
  }

  void CopyIn(void* device, const void* host, size_t bytes) override { Copy(device, host, bytes); }
  void CopyOut(void* host, const void* device, size_t bytes) override { Copy(host, device, bytes); }
  void CopyWithin(void* to, const void* from, size_t bytes) override { Copy(to, from, bytes); }
  void Fill(void* device, int byte, size_t bytes) override {
    Add([device, byte, bytes](uint64_t) { std::memset(device, byte, bytes); });
  }
  void Record(DeviceEvent&) override {}
  void Wait(DeviceEvent&) override {}

  absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(absl::FunctionRef<void()> enqueue) override {
    std::vector<Work> work;
    captured_ = &work;
    enqueue();
    captured_ = nullptr;
    return std::unique_ptr<DeviceGraph>(std::make_unique<EmulatedGraph>(std::move(work)));
  }
  void Launch(DeviceGraph& graph) override {
    for (const Work& work : static_cast<EmulatedGraph&>(graph).work) Add(work);
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  const absl::Status& status() const override { return status_; }

 private:
  void Copy(void* to, const void* from, size_t bytes) {
    Add([to, from, bytes](uint64_t) { std::memcpy(to, from, bytes); });
  }

  uint64_t seed_;
  std::vector<Work>* captured_ = nullptr;
  const absl::Status status_;
};

class EmulatedDevice final : public Device {
 public:
  EmulatedDevice(uint64_t seed, EmulatedChip chip)
      : seed_(seed), ops_(chip == EmulatedChip::kHopper ? kHopperOps : kOps) {
    properties_.name = "emulated";
    properties_.compute_major = chip == EmulatedChip::kHopper ? 9 : 8;
    properties_.multiprocessors = 2;
    properties_.memory_bytes = int64_t{1} << 30;
    properties_.shared_bytes_per_block_max = 160 << 10;
  }

  const DeviceProperties& properties() const override { return properties_; }
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
  absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream() override {
    return std::unique_ptr<DeviceStream>(std::make_unique<EmulatedStream>(seed_));
  }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() override {
    return std::unique_ptr<DeviceEvent>(std::make_unique<EmulatedEvent>());
  }

 private:
  void Free(DeviceBuffer::Kind, void* data) override { std::free(data); }

  const uint64_t seed_;
  const DeviceOps& ops_;
  DeviceProperties properties_;
};

}  // namespace

void Enqueue(DeviceStream& stream, std::function<void(uint64_t seed)> work) {
  static_cast<EmulatedStream&>(stream).Add(std::move(work));
}

std::unique_ptr<Device> NewEmulatedDevice(uint64_t seed, EmulatedChip chip) {
  return std::make_unique<EmulatedDevice>(seed, chip);
}

}  // namespace tandem::kernels::emulated
