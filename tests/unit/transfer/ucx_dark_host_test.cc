// Goal: a peer whose host does not answer holds up no other transfer of a whole UCX transport: a
// frame to a live peer, sent later, arrives before the transport gives the dark one up.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/transfer/ucx_address.h"
#include "common/transfer/ucx_transport.h"
#include "tests/testing/status_matchers.h"

namespace tandem::transfer {
namespace {

constexpr char kSecret[] = "fleet";

struct Recorder final : KvTransport::Listener {
  std::optional<ScatterList> OnFrame(PeerId, const v1::KvFrame&, size_t, uint64_t) override {
    ++frames;
    return std::nullopt;
  }
  void OnPayload(uint64_t, const absl::Status&, const ReceiveInterval&) override {}
  void OnPeerLost(PeerId peer, const absl::Status&) override { lost.push_back(peer); }

  int frames = 0;
  std::vector<PeerId> lost;
};

// The ports that this process listens on.
std::set<uint16_t> ListeningPorts() {
  std::set<uint16_t> ports;
  for (int fd = 0; fd < 4096; ++fd) {
    int listens = 0;
    socklen_t bytes = sizeof listens;
    sockaddr_in address = {};
    socklen_t address_bytes = sizeof address;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens != 0 &&
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &address_bytes) == 0 &&
        address.sin_family == AF_INET)
      ports.insert(address.sin_port);
  }
  return ports;
}

// Listens on all addresses of this host with a full queue: the kernel answers no connection more.
class DarkPort {
 public:
  DarkPort() : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    socklen_t bytes = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::listen(listener_, 0), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    port_ = address.sin_port;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < 4; ++i) {
      queued_.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
      static_cast<void>(
          ::connect(queued_.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
    }
  }
  ~DarkPort() {
    for (const int fd : queued_) ::close(fd);
    ::close(listener_);
  }
  DarkPort(const DarkPort&) = delete;
  DarkPort& operator=(const DarkPort&) = delete;

  uint16_t port() const { return port_; }  // in network order

 private:
  const int listener_;
  std::vector<int> queued_;
  uint16_t port_ = 0;
};

std::unique_ptr<KvTransport> NewTransport() {
  return *NewUcxTransport({.transports = "tcp", .host = "h", .fleet_secret = kSecret});
}

PeerAddress AddressOf(const std::string& node, std::string bytes) {
  return {.node = NodeId(node),
          .incarnation = Incarnation(1),
          .transport_address = std::move(bytes),
          .host = "another host"};
}

TEST(UcxDarkHost, HoldsUpNoOtherTransfer) {
  const auto sender = NewTransport(), receiver = NewTransport();
  Recorder sent, received;
  sender->SetListener(&sent);
  receiver->SetListener(&received);
  // A transport's address with a port that answers nothing in place of its own.
  const std::set<uint16_t> before = ListeningPorts();
  const auto gone = NewTransport();
  const DarkPort dark;
  ASSERT_OK_AND_ASSIGN(UcxAddress address, UcxAddress::Parse(gone->address(), kSecret));
  int replaced = 0;
  for (const uint16_t port : ListeningPorts()) {
    if (before.contains(port) || port == dark.port()) continue;
    const std::string own(reinterpret_cast<const char*>(&port), sizeof port);
    const uint16_t dark_port = dark.port();
    const std::string other(reinterpret_cast<const char*>(&dark_port), sizeof dark_port);
    for (size_t at = address.worker_address.find(own); at != std::string::npos;
         at = address.worker_address.find(own, at + own.size())) {
      address.worker_address.replace(at, own.size(), other);
      ++replaced;
    }
  }
  ASSERT_GT(replaced, 0) << "UCX writes ports into its addresses in another way";
  v1::KvFrame frame;
  ASSERT_OK_AND_ASSIGN(const PeerId dark_peer,
                       sender->Connect(AddressOf("dark", address.Serialize(kSecret))));
  sender->Send(dark_peer, frame, {}, [](const absl::Status&) {});
  ASSERT_OK_AND_ASSIGN(const PeerId live_peer,
                       sender->Connect(AddressOf("live", receiver->address())));
  sender->Send(live_peer, frame, {}, [](const absl::Status&) {});
  while (received.frames == 0 && sent.lost.empty()) {
    sender->Progress();
    receiver->Progress();
  }
  EXPECT_EQ(received.frames, 1);
  EXPECT_TRUE(sent.lost.empty()) << "the dark host was given up first";
  // It is given up in the end.
  while (sent.lost.empty()) {
    sender->Progress();
    receiver->Progress();
    sender->Wait(absl::Milliseconds(20));
  }
  EXPECT_EQ(sent.lost.front(), dark_peer);
}

}  // namespace
}  // namespace tandem::transfer
