// Goal: a node finds a router whose name has got another address as soon as the old address has
// failed; it does not go on with what it resolved before.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/fleet_client.h"
#include "common/rpc/server.h"
#include "gtest/gtest.h"
#include "tandem/v1/fleet.grpc.pb.h"
#include "tests/testing/status_matchers.h"

namespace {

constexpr char kName[] = "router.tandem.test";
std::atomic<const char*> address_of_name = "127.0.0.1";

// gRPC reads this when it starts: it then resolves names by getaddrinfo, which is below.
const bool uses_getaddrinfo = setenv("GRPC_DNS_RESOLVER", "native", /*overwrite=*/1) == 0;

}  // namespace

extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool ours = node != nullptr && std::strcmp(node, kName) == 0;
  return real(ours ? address_of_name.load() : node, service, hints, found);
}

namespace tandem::rpc {
namespace {

// Accepts connections at a port of 127.0.0.1 and closes them.
class DeadEnd {
 public:
  DeadEnd() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_, any, length), 0);
    EXPECT_EQ(listen(socket_, 16), 0);
    EXPECT_EQ(getsockname(socket_, any, &length), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      for (int peer = 0; (peer = accept(socket_, nullptr, nullptr)) >= 0; ++accepted_) close(peer);
    });
  }
  ~DeadEnd() {
    shutdown(socket_, SHUT_RDWR);
    thread_.join();
    close(socket_);
  }
  int port() const { return port_; }
  int accepted() const { return accepted_; }

 private:
  const int socket_;
  int port_ = 0;
  std::atomic<int> accepted_{0};
  std::thread thread_;
};

class Router final : public v1::Fleet::Service {
  grpc::Status Join(grpc::ServerContext*,
                    grpc::ServerReaderWriter<v1::RouterMessage, v1::NodeMessage>* stream) override {
    stream->SendInitialMetadata();
    v1::NodeMessage message;
    while (stream->Read(&message)) {
    }
    return grpc::Status::OK;
  }
};

class Listener final : public FleetClient::Listener {
 public:
  void OnConnected(FleetClient&, uint64_t) override { connected_ = true; }
  void OnMessage(FleetClient&, uint64_t, v1::RouterMessage) override {}
  void OnDisconnected(FleetClient&, uint64_t, const absl::Status&) override {}
  bool connected() const { return connected_; }

 private:
  std::atomic<bool> connected_{false};
};

TEST(RouterName, IsResolvedAgainWhenItsAddressFails) {
  ASSERT_TRUE(uses_getaddrinfo);
  // gRPC itself asks again after 30 s; a node at its pace has failed hundreds of times by then.
  constexpr int kFailuresMax = 20;
  DeadEnd old;
  Router router;
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Server> server,
      Server::Start(absl::StrCat("127.0.0.2:", old.port()), {&router}, kNodeLimits));
  Listener listener;
  std::unique_ptr<FleetClient> client =
      FleetClient::Create(absl::StrCat(kName, ":", old.port()), listener, {});
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  absl::Time now = absl::Now();
  while (!listener.connected() && old.accepted() < kFailuresMax && absl::Now() < give_up) {
    client->Tick(now += absl::Seconds(1));
    if (old.accepted() > 0) address_of_name = "127.0.0.2";
    std::this_thread::yield();
  }
  EXPECT_GT(old.accepted(), 0);
  EXPECT_TRUE(listener.connected()) << old.accepted() << " attempts at the old address";
  client.reset();
  server->Shutdown(absl::Seconds(5));
}

}  // namespace
}  // namespace tandem::rpc
