#include "cli/chaos/namespaces.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/runtime/thread.h"

namespace tandem::cli {
namespace {

constexpr char kDevice[] = "tandem0";
constexpr int kMtu = 9000;
// Packets that may wait for the switch, whose thread may be scheduled late on a busy machine. A
// packet dropped here would be a loss that no fault decided, and cost its connection the 200 ms of
// a retransmission.
constexpr int kQueuedPackets = 10000;
constexpr char kFiller[] = "/dev/shm/chaos.full";

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::Status Denied(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

std::string PortAddress(int port) { return absl::StrCat("10.78.0.", port + 1); }

absl::Status SetAddress(int control, unsigned long request, const std::string& address) {
  ifreq name = {};
  std::strncpy(name.ifr_name, kDevice, IFNAMSIZ - 1);
  auto* in = reinterpret_cast<sockaddr_in*>(&name.ifr_addr);
  in->sin_family = AF_INET;
  inet_pton(AF_INET, address.c_str(), &in->sin_addr);
  if (ioctl(control, request, &name) != 0) return Denied(absl::StrCat("address ", address));
  return absl::OkStatus();
}

absl::Status SetUp(int control, const char* device) {
  ifreq name = {};
  std::strncpy(name.ifr_name, device, IFNAMSIZ - 1);
  if (ioctl(control, SIOCGIFFLAGS, &name) != 0) return Denied(absl::StrCat("flags of ", device));
  name.ifr_flags = static_cast<short>(name.ifr_flags | IFF_UP);
  if (ioctl(control, SIOCSIFFLAGS, &name) != 0) return Denied(absl::StrCat("bringing up ", device));
  return absl::OkStatus();
}

// In the calling thread's network namespace.
absl::StatusOr<Descriptor> OpenDevice(int port) {
  Descriptor device(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (device.get() < 0) return Denied("/dev/net/tun");
  ifreq name = {};
  std::strncpy(name.ifr_name, kDevice, IFNAMSIZ - 1);
  name.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(device.get(), TUNSETIFF, &name) != 0) return Denied("a TUN device");
  const Descriptor control(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (control.get() < 0) return Denied("a socket");
  RETURN_IF_ERROR(SetAddress(control.get(), SIOCSIFADDR, PortAddress(port)));
  RETURN_IF_ERROR(SetAddress(control.get(), SIOCSIFNETMASK, "255.255.255.0"));
  name.ifr_mtu = kMtu;
  if (ioctl(control.get(), SIOCSIFMTU, &name) != 0) return Denied("packet size");
  name.ifr_qlen = kQueuedPackets;
  if (ioctl(control.get(), SIOCSIFTXQLEN, &name) != 0) return Denied("queue length");
  RETURN_IF_ERROR(SetUp(control.get(), kDevice));
  RETURN_IF_ERROR(SetUp(control.get(), "lo"));
  return device;
}

struct Port {
  Descriptor device, network;
};

// Creates a namespace that lives while its descriptor is open.
absl::StatusOr<Port> NewPort(int port) {
  absl::StatusOr<Port> made = absl::UnknownError("the network namespace was not created");
  // In a new thread: a thread has its own namespace, so the calling thread stays in its own.
  Thread maker("namespace", [&] {
    made = [&]() -> absl::StatusOr<Port> {
      if (unshare(CLONE_NEWNET) != 0) return Denied("a network namespace");
      ASSIGN_OR_RETURN(Descriptor device, OpenDevice(port));
      Descriptor network(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
      if (network.get() < 0) return Denied("/proc/thread-self/ns/net");
      return Port{std::move(device), std::move(network)};
    }();
  });
  maker.Join();
  return made;
}

class NamespacesImpl final : public Namespaces {
 public:
  absl::Status Init(int count, int64_t shm_bytes, uint64_t seed) {
    // The others' namespaces first: when they cannot be created, this process has not changed.
    std::vector<Port> others;
    for (int port = 1; port <= count; ++port) {
      ASSIGN_OR_RETURN(Port made, NewPort(port));
      others.push_back(std::move(made));
    }
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0) return Denied("namespaces");
    ASSIGN_OR_RETURN(Descriptor device, OpenDevice(0));
    ports_.push_back({std::move(device), Descriptor()});
    for (Port& port : others) ports_.push_back(std::move(port));
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return Denied("mounts");
    const std::string size = absl::StrCat("size=", shm_bytes);
    if (mount("tmpfs", "/dev/shm", "tmpfs", 0, size.c_str()) != 0) return Denied("/dev/shm");
    std::vector<int> devices;
    for (const Port& port : ports_) devices.push_back(port.device.get());
    packets_ = PacketSwitch::Start(std::move(devices), seed);
    return absl::OkStatus();
  }
  ~NamespacesImpl() override { packets_.reset(); }

  std::string AddressOf(int port) const override { return PortAddress(port); }
  int DescriptorOf(int port) const override {
    return ports_[static_cast<size_t>(port)].network.get();
  }
  PacketSwitch& packets() override { return *packets_; }

  absl::Status FillDisk() override {
    const Descriptor file(open(kFiller, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    if (file.get() < 0) return Denied(kFiller);
    const std::vector<char> bytes(1 << 20, 'x');
    while (write(file.get(), bytes.data(), bytes.size()) > 0) {
    }
    return errno == ENOSPC ? absl::OkStatus() : Denied(kFiller);
  }
  void EmptyDisk() override { unlink(kFiller); }

 private:
  std::vector<Port> ports_;
  std::unique_ptr<PacketSwitch> packets_;  // ends first: it borrows the devices
};

}  // namespace

absl::StatusOr<std::unique_ptr<Namespaces>> Namespaces::Create(int count, int64_t shm_bytes,
                                                               uint64_t seed) {
  const Descriptor home(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
  auto namespaces = std::make_unique<NamespacesImpl>();
  const absl::Status status = namespaces->Init(count, shm_bytes, seed);
  if (status.ok()) return namespaces;
  if (home.get() < 0 || setns(home.get(), CLONE_NEWNET) != 0)
    return absl::InternalError(
        absl::StrCat(status.message(), "; this process could not return to its own namespace"));
  return status;
}

}  // namespace tandem::cli
