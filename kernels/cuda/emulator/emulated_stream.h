// Streams, graphs and events of the emulated device. A stream runs its work at once, on the calling
// thread, unless a capture records it; a graph replays the recorded work.
//
// On a chip whose kernels start early (kernels/cuda/hopper_types.h) a stream holds back some
// kernels, as a random draw says, until other work comes or a thread waits for the stream. If the
// other work is a kernel that starts early, the held one runs when that kernel waits for it, so
// that nothing before its wait sees the held one's results.
//
// Thread safety: one thread at a time for a device and everything made from it.
// Owner: tests own streams, graphs and events; the device, which must outlive them, owns the
// counters, the faults, the clock and the set of streams that they refer to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kernels/api/device.h"
#include "kernels/cuda/emulator/thread_block.h"

namespace tandem::kernels::emulated {

// One piece of enqueued work. `seed` orders threads and blocks; `before` is a kernel that has not
// run yet, or nullptr, and is for kernels that start early alone.
struct Work {
  std::function<void(uint64_t seed, Predecessor* before)> run;
  bool is_kernel = false;
  bool starts_early = false;
};

class EmulatedStream;
// What a device's streams share.
struct StreamsOfDevice {
  std::set<EmulatedStream*> streams;
  bool starts_early = false;  // whether the chip has kernels that do
  int refused_graphs = 0;     // so many of the next captures fail

  // Runs what the streams hold back, as freeing memory waits for a device.
  void RunHeld();
};

// Milliseconds, as a test's clock gives them; empty: the device has no clock.
using Clock = std::function<float()>;

// What callers asked of a device's streams. A graph counts as one launch each time it runs; the
// work inside it is not counted.
struct DeviceCalls {
  int64_t copies = 0;  // in, out, within, and fills
  int64_t kernels = 0;
  int64_t blocks = 0;  // of the kernels
  int64_t graphs = 0;
  int64_t events = 0;  // recorded or waited for
  int64_t synchronises = 0;
  int64_t bytes_in = 0, bytes_out = 0;  // of the copies

  int64_t total() const { return copies + kernels + graphs + events + synchronises; }
};

// The next `count` copies of at least `bytes_min` bytes flip one bit of what they copied.
struct CopyFaults {
  int count = 0;
  size_t bytes_min = 0;
};

class EmulatedEvent final : public DeviceEvent {
 public:
  absl::Status Synchronize() override { return absl::OkStatus(); }
  // Errors: kUnimplemented when the device had no clock as one of the events was recorded.
  absl::StatusOr<float> MillisecondsSince(DeviceEvent& start) override;

  std::optional<float> recorded_ms;
};

class EmulatedStream final : public DeviceStream {
 public:
  EmulatedStream(uint64_t seed, DeviceCalls* calls, CopyFaults* faults, const Clock* clock,
                 StreamsOfDevice* all);
  ~EmulatedStream() override;

  // Runs a kernel of `blocks` blocks, or records it while capturing.
  void Launch(int64_t blocks, Work work);

  void CopyIn(void* device, const void* host, size_t bytes) override;
  void CopyOut(void* host, const void* device, size_t bytes) override;
  void CopyWithin(void* to, const void* from, size_t bytes) override { Copy(to, from, bytes); }
  void Fill(void* device, int byte, size_t bytes) override;
  void Record(DeviceEvent& event) override;
  void Wait(DeviceEvent&) override { ++calls_.events; }
  absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(absl::FunctionRef<void()> enqueue) override;
  void Launch(DeviceGraph& graph) override;
  absl::Status Synchronize() override;
  const absl::Status& status() const override { return status_; }
  // Runs the kernel that is held back, if there is one.
  void RunHeld();

 private:
  // Runs `work` now or holds it back, or appends it to the capture.
  void Add(Work work);
  void RunOrHold(const Work& work);
  void Copy(void* to, const void* from, size_t bytes);

  uint64_t seed_;
  DeviceCalls& calls_;
  CopyFaults& faults_;
  const Clock& clock_;
  StreamsOfDevice& all_;
  std::vector<Work>* captured_ = nullptr;
  std::optional<Predecessor> held_;
  const absl::Status status_;
};

}  // namespace tandem::kernels::emulated
