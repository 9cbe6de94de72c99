// Goal: waiting for the clients of a chaos run takes no longer than its timeout, and can be
// interrupted, while a client waits for a router that never answers.
#include "cli/chaos/chaos_load.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/runtime/clock.h"

namespace tandem::cli {
namespace {

// A router that takes connections and says nothing.
class SilentRouter {
 public:
  SilentRouter() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address_);
    auto* const address = reinterpret_cast<sockaddr*>(&address_);
    EXPECT_EQ(::bind(listener_, address, length), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    EXPECT_EQ(::getsockname(listener_, address, &length), 0);
  }
  ~SilentRouter() {
    if (connection_ >= 0) ::close(connection_);
    ::close(listener_);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", ntohs(address_.sin_port)); }
  void AwaitClient() {
    connection_ = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    EXPECT_GE(connection_, 0);
  }

 private:
  const int listener_;
  int connection_ = -1;
  sockaddr_in address_ = {};
};

class ChaosLoadTest : public ::testing::Test {
 protected:
  // With one client, which waits for the router.
  std::unique_ptr<ChaosLoad> Start() {
    ChaosLoad::Options options;
    options.routers = {router_.address()};
    v1::GenerateRequest request;
    request.mutable_tokens()->add_ids(1);
    request.mutable_stop()->set_max_tokens(1);
    options.requests = {request};
    options.expected.resize(1);
    options.clients = 1;
    options.patience = options.give_up_after = absl::Hours(1);
    auto load = ChaosLoad::Start(options, RealClock().Now());
    router_.AwaitClient();
    return load;
  }

  SilentRouter router_;
};

// Without the interrupt it would take an hour.
TEST_F(ChaosLoadTest, WaitingForClientsCanBeInterrupted) {
  const auto load = Start();
  int asked = 0;
  EXPECT_FALSE(load->Finish(absl::Hours(1), [&asked] { return ++asked == 2; }));
  EXPECT_EQ(asked, 2);
}

TEST_F(ChaosLoadTest, WaitingForClientsEndsWithTheTimeout) {
  const auto load = Start();
  EXPECT_FALSE(load->Finish(absl::ZeroDuration(), [] { return false; }));
}

}  // namespace
}  // namespace tandem::cli
