// Goal: a connection's deadlines hold: a request that does not arrive is answered 408, a reply that
// is not read ends its own connection only, and what threads post is run in order.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "router/front_end/http/http_server.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using testing::HttpAnswer;
using testing::HttpSocket;

HttpReply Fault(int status, const std::string& message) { return {status, "text/plain", message}; }

HttpServerOptions Options(ConnectionLimits limits) {
  HttpServerOptions options;
  options.address = "127.0.0.1:0";
  options.threads = 1;
  options.limits = limits;
  return options;
}

TEST(HttpServer, AnswersRequestsThatDoNotArrive) {
  HttpConnection::Hooks hooks;
  hooks.handle = [](HttpRequest, std::shared_ptr<HttpExchange> exchange) {
    exchange->Reply({200, "text/plain", "whole"});
  };
  hooks.fault = Fault;
  ASSERT_OK_AND_ASSIGN(
      auto server,
      HttpServer::Start(Options({.request_timeout = absl::Milliseconds(100)}), std::move(hooks)));
  for (const char* begun : {"POST /v1/completions HTTP/1.1\r\nhost: t",
                            "POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 10\r\n\r\nhalf"}) {
    SCOPED_TRACE(begun);
    HttpSocket socket(server->address());
    ASSERT_TRUE(socket.Send(begun));
    const HttpAnswer answer = socket.Read();
    EXPECT_EQ(answer.status, 408);
    EXPECT_EQ(answer.Header("connection"), "close");
    EXPECT_FALSE(socket.ReadSome());
  }
  // One that arrives is not touched by the deadline of the one before it.
  HttpSocket socket(server->address());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(socket.Send("GET / HTTP/1.1\r\nhost: t\r\n\r\n"));
    EXPECT_EQ(socket.Read().body, "whole");
  }
}

// Streams until its client is gone.
class Endless final : public PendingAnswer, public std::enable_shared_from_this<Endless> {
 public:
  Endless(HttpExchange& exchange, absl::Notification& gone) : exchange_(exchange), gone_(gone) {}
  void Begin() {
    exchange_.BeginStream({200, "text/plain", "first"});
    OnWritable();
  }
  void OnGone() override { gone_.Notify(); }
  void OnWritable() override {
    while (!exchange_.writing()) exchange_.WriteStream(std::string(65536, 'x'));
  }

 private:
  HttpExchange& exchange_;
  absl::Notification& gone_;
};

TEST(HttpServer, EndsAConnectionThatDoesNotRead) {
  absl::Notification gone;
  HttpConnection::Hooks hooks;
  hooks.handle = [&gone](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    if (request.path == "/whole") return exchange->Reply({200, "text/plain", "whole"});
    auto answer = std::make_shared<Endless>(*exchange, gone);
    exchange->Wait(answer);
    answer->Begin();
  };
  hooks.fault = Fault;
  ASSERT_OK_AND_ASSIGN(
      auto server,
      HttpServer::Start(Options({.write_timeout = absl::Milliseconds(100)}), std::move(hooks)));
  HttpSocket deaf(server->address());
  ASSERT_TRUE(deaf.Send("GET /endless HTTP/1.1\r\nhost: t\r\n\r\n"));
  EXPECT_EQ(testing::Ask(server->address(), testing::GetOf("/whole")).body, "whole");
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(absl::Seconds(30)));
  // What was sent before is there; then the stream ends without its last chunk.
  while (deaf.ReadSome()) {
  }
  EXPECT_NE(deaf.buffer().find("first"), std::string::npos);
  EXPECT_EQ(deaf.buffer().find("\r\n0\r\n\r\n"), std::string::npos);
  EXPECT_EQ(testing::Ask(server->address(), testing::GetOf("/whole")).body, "whole");
}

TEST(HttpServer, RunsWhatIsPostedInOrder) {
  constexpr int kPosts = 20000;
  std::vector<std::thread> threads;
  HttpConnection::Hooks hooks;
  hooks.handle = [&threads](HttpRequest, std::shared_ptr<HttpExchange> exchange) {
    threads.emplace_back([exchange] {
      const auto seen = std::make_shared<int>(0);
      for (int i = 0; i < kPosts; ++i) {
        exchange->Post([exchange, seen, i] {
          if (*seen == i) ++*seen;
          if (i + 1 == kPosts) exchange->Reply({200, "text/plain", std::to_string(*seen)});
        });
      }
    });
  };
  hooks.fault = Fault;
  ASSERT_OK_AND_ASSIGN(auto server, HttpServer::Start(Options({}), std::move(hooks)));
  std::vector<std::unique_ptr<HttpSocket>> sockets;
  for (int i = 0; i < 3; ++i) {
    sockets.push_back(std::make_unique<HttpSocket>(server->address()));
    ASSERT_TRUE(sockets.back()->Send(testing::GetOf("/")));
  }
  for (const auto& socket : sockets) EXPECT_EQ(socket->Read().body, std::to_string(kPosts));
  server->Stop();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tandem::router
