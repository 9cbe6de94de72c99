#include "cli/chaos/packet_switch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/runtime/clock.h"
#include "common/runtime/thread.h"

namespace tandem::cli {

LinkTable::LinkTable(int ports, uint64_t seed)
    : ports_(ports),
      random_(NewSeededRandom(seed)),
      links_(static_cast<size_t>(ports) * static_cast<size_t>(ports)) {}

void LinkTable::Set(int from, int to, const LinkCondition& condition) {
  At(from, to).condition = condition;
}

std::optional<absl::Time> LinkTable::Arrival(int from, int to, int64_t bytes, absl::Time now) {
  Link& link = At(from, to);
  const LinkCondition& condition = link.condition;
  if (condition.cut) return std::nullopt;
  if (condition.lost_of_thousand > 0 &&
      random_->Below(1000) < static_cast<uint64_t>(condition.lost_of_thousand))
    return std::nullopt;
  if (condition.bytes_per_second == 0) {
    // Packets that the link held while it was slow go first.
    return std::max(now, link.free_at);
  }
  const absl::Time begin = std::max(now, link.free_at);
  if (begin - now > kHeldMax) return std::nullopt;
  link.free_at = begin + absl::Seconds(1) * (static_cast<double>(bytes) /
                                             static_cast<double>(condition.bytes_per_second));
  return link.free_at;
}

namespace {

constexpr int kPacketBytesMax = 65536;
constexpr int kReadsInARow = 64;  // of one device, so that the others are read too
constexpr int kDestination = 16;  // of an IPv4 header; 4 bytes
constexpr int kHeaderBytes = 20;

class PacketSwitchImpl final : public PacketSwitch {
 public:
  PacketSwitchImpl(std::vector<int> devices, uint64_t seed)
      : devices_(std::move(devices)),
        wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        table_(static_cast<int>(devices_.size()), seed) {
    thread_ = Thread("packets", [this] { Run(); });
  }
  ~PacketSwitchImpl() override {
    stopping_ = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
    thread_.Join();
    close(wake_fd_);
  }

  void Set(int from, int to, const LinkCondition& condition) override {
    absl::MutexLock lock(&mutex_);
    table_.Set(from, to, condition);
  }
  Counts counts() const override { return {passed_, lost_}; }

 private:
  struct Held {
    int port;
    std::string packet;
  };

  void Run() {
    std::vector<pollfd> fds;
    for (const int device : devices_) fds.push_back({device, POLLIN, 0});
    fds.push_back({wake_fd_, POLLIN, 0});
    while (!stopping_) {
      poll(fds.data(), fds.size(), WaitMs());
      const absl::Time now = RealClock().Now();
      Release(now);
      for (size_t port = 0; port < devices_.size(); ++port)
        if ((fds[port].revents & POLLIN) != 0) Drain(static_cast<int>(port), now);
    }
  }

  int WaitMs() const {
    if (held_.empty()) return -1;
    const absl::Duration wait = held_.begin()->first - RealClock().Now();
    return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(wait) + 1, 0, 1000));
  }

  void Release(absl::Time now) {
    while (!held_.empty() && held_.begin()->first <= now) {
      const Held& held = held_.begin()->second;
      Deliver(held.port, held.packet.data(), static_cast<ssize_t>(held.packet.size()));
      held_.erase(held_.begin());
    }
  }

  void Drain(int from, absl::Time now) {
    for (int i = 0; i < kReadsInARow; ++i) {
      const ssize_t bytes = read(devices_[static_cast<size_t>(from)], packet_, sizeof(packet_));
      if (bytes <= 0) return;
      const int to = DestinationOf(bytes);
      if (to < 0) continue;
      absl::MutexLock lock(&mutex_);
      const std::optional<absl::Time> arrival = table_.Arrival(from, to, bytes, now);
      if (!arrival.has_value()) {
        ++lost_;
      } else if (*arrival <= now) {
        Deliver(to, packet_, bytes);
      } else {
        held_.emplace(*arrival, Held{to, std::string(packet_, static_cast<size_t>(bytes))});
      }
    }
  }

  // The port; -1 for anything but a packet to one of the ports.
  int DestinationOf(ssize_t bytes) const {
    if (bytes < kHeaderBytes || (static_cast<uint8_t>(packet_[0]) >> 4) != 4) return -1;
    const int port = static_cast<uint8_t>(packet_[kDestination + 3]) - 1;
    return port >= 0 && port < static_cast<int>(devices_.size()) ? port : -1;
  }

  // A device whose queue is full loses the packet, as hardware does.
  void Deliver(int port, const char* packet, ssize_t bytes) {
    const ssize_t written =
        write(devices_[static_cast<size_t>(port)], packet, static_cast<size_t>(bytes));
    ++(written == bytes ? passed_ : lost_);
  }

  const std::vector<int> devices_;
  const int wake_fd_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> passed_{0}, lost_{0};
  char packet_[kPacketBytesMax];          // switch thread
  std::multimap<absl::Time, Held> held_;  // switch thread; bounded by kHeldMax of each link
  absl::Mutex mutex_;
  LinkTable table_ ABSL_GUARDED_BY(mutex_);
  Thread thread_;
};

}  // namespace

std::unique_ptr<PacketSwitch> PacketSwitch::Start(std::vector<int> devices, uint64_t seed) {
  return std::make_unique<PacketSwitchImpl>(std::move(devices), seed);
}

}  // namespace tandem::cli
