// Goal: what gRPC says of a wrong address or of a router that shuts down, in texts of its own
// version, becomes a plain sentence with the router's address; other errors stay as they are.
#include "cli/client/call_error.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "cli/client/client.h"
#include "tandem/v1/client.grpc.pb.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A router whose GetModel never ends by itself.
class WaitingRouter final : public v1::Tandem::CallbackService {
 public:
  WaitingRouter() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~WaitingRouter() override { ShutDown(); }

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest*, v1::GetModelResponse*) override {
    if (called_.HasBeenNotified()) {
      context->DefaultReactor()->Finish(grpc::Status::CANCELLED);
      return context->DefaultReactor();
    }
    called_.Notify();
    return &call_;
  }

  const std::string& address() const { return address_; }
  void AwaitCall() { called_.WaitForNotification(); }
  // Ends calls that run.
  void ShutDown() { server_->Shutdown(std::chrono::system_clock::time_point()); }

 private:
  // Ends when its client or the server ends it.
  struct Call final : grpc::ServerUnaryReactor {
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override {}
  };

  Call call_;
  absl::Notification called_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

TEST(CallError, ARouterThatShutsDownEndsItsCalls) {
  WaitingRouter router;
  const auto client = Client::Create(router.address());
  auto call = std::async(std::launch::async, [&] { return client->GetModel().status(); });
  router.AwaitCall();
  router.ShutDown();
  const absl::Status status = call.get();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("router at ", router.address(), ": ")));
  EXPECT_THAT(status.message(), HasSubstr("ended the call"));
  EXPECT_THAT(status.message(), Not(HasSubstr("Cancelling")));
}

TEST(CallError, ACallThatItsUserEndsIsNotTheRoutersDoing) {
  WaitingRouter router;
  const auto client = Client::Create(router.address());
  Cancellation cancellation;
  auto call =
      std::async(std::launch::async, [&] { return client->GetModel(cancellation).status(); });
  router.AwaitCall();
  cancellation.Cancel();
  const absl::Status status = call.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(status.message(), Not(HasSubstr("ended the call")));
}

TEST(CallError, AServerWithoutTlsIsNamed) {
  WaitingRouter router;
  ClientOptions options;
  options.tls.authorities = "system";
  ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect(router.address(), options));
  EXPECT_THAT(client->GetModel().status().ToString(),
              HasSubstr(absl::StrCat("router at ", router.address(),
                                     ": the server speaks no TLS, expected no --tls-ca")));
}

TEST(CallError, AnHttpPortIsNamed) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const bytes = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(listener, bytes, length), 0);
  ASSERT_EQ(::listen(listener, 16), 0);
  ASSERT_EQ(::getsockname(listener, bytes, &length), 0);
  // Answers each connection as a server of HTTP 1 does, until the listener shuts down.
  std::thread server([listener] {
    constexpr char kAnswer[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    for (int fd; (fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; ::close(fd)) {
      char received[4096];
      if (::read(fd, received, sizeof(received)) > 0) {
        EXPECT_EQ(::write(fd, kAnswer, sizeof(kAnswer) - 1), ssize_t{sizeof(kAnswer) - 1});
      }
    }
  });
  const auto client = Client::Create(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)));
  EXPECT_THAT(client->GetModel().status().ToString(),
              HasSubstr("that is an HTTP port, expected the router's gRPC port"));
  ::shutdown(listener, SHUT_RDWR);
  server.join();
  ::close(listener);
}

TEST(CallError, OthersStayAsTheyAre) {
  const absl::Status refused = absl::InvalidArgumentError("top_p: expected at most 1");
  EXPECT_EQ(ExplainCallError("r:1", true, refused), refused);
  EXPECT_EQ(ExplainCallError("r:1", true, absl::UnavailableError("no room")).message(),
            "router at r:1: no room");
  EXPECT_THAT(ExplainCallError("r:1", false, absl::UnauthenticatedError("")).message(),
              HasSubstr("--api-key is missing"));
}

}  // namespace
}  // namespace tandem::cli
