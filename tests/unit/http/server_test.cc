// Goal: a connection's deadlines hold: a request that does not arrive is answered 408, a reply that
// is not read ends its own connection only, and what threads post is run in order.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "router/front_end/http/http_server.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using testing::HttpAnswer;
using testing::HttpSocket;

HttpReply Fault(int status, const std::string& message, const std::optional<HttpRequest>&) {
  return {status, "text/plain", message};
}

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

// A client that reads little at a time keeps its answer for as long as it reads. The idle
// connections are the clock: each ends after a quarter of the write timeout.
TEST(HttpServer, ASlowReaderGetsItsWholeAnswer) {
  constexpr absl::Duration kWriteTimeout = absl::Seconds(2);
  HttpConnection::Hooks hooks;
  const std::string body(size_t{24} << 20, 'x');
  hooks.handle = [&body](HttpRequest, std::shared_ptr<HttpExchange> exchange) {
    exchange->Reply({200, "text/plain", body});
  };
  hooks.fault = Fault;
  ASSERT_OK_AND_ASSIGN(auto server, HttpServer::Start(Options({.idle_timeout = kWriteTimeout / 4,
                                                               .write_timeout = kWriteTimeout}),
                                                      std::move(hooks)));
  HttpSocket slow(server->address());
  ASSERT_TRUE(slow.Send("GET / HTTP/1.1\r\nhost: t\r\n\r\n"));
  for (int tick = 0; tick < 8; ++tick) {
    HttpSocket idle(server->address());
    while (idle.ReadSome()) {
    }
    const size_t before = slow.buffer().size();
    while (slow.buffer().size() < before + (size_t{1} << 20)) {
      ASSERT_TRUE(slow.ReadSome()) << "cut off after " << slow.buffer().size() << " bytes";
    }
  }
  EXPECT_EQ(slow.Read().body.size(), body.size());
}

// Strangers send large requests and never end them. What they hold is bounded; ordinary requests
// are answered meanwhile, and large ones again once the strangers have left.
TEST(HttpServer, BoundsWhatAllConnectionsHold) {
  constexpr int64_t kBytesMax = 1 << 20;
  constexpr int kStrangers = 40;
  HttpConnection::Hooks hooks;
  hooks.handle = [](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    exchange->Reply({200, "text/plain", std::to_string(request.body.size())});
  };
  hooks.fault = Fault;
  HttpServerOptions options = Options({});
  options.buffer_bytes_max = kBytesMax;
  ASSERT_OK_AND_ASSIGN(auto server, HttpServer::Start(options, std::move(hooks)));
  const auto head = [](int64_t body) {
    return "POST / HTTP/1.1\r\nhost: t\r\ncontent-length: " + std::to_string(body) + "\r\n\r\n";
  };
  const std::string large(100'000, 'x');
  std::vector<std::unique_ptr<HttpSocket>> strangers;
  for (int i = 0; i < kStrangers; ++i) {
    strangers.push_back(std::make_unique<HttpSocket>(server->address()));
    ASSERT_TRUE(strangers.back()->Send(head(10'000'000) + large));
    const std::string small(10'000, 'y');
    EXPECT_EQ(testing::Ask(server->address(), head(10'000) + small).body, "10000");
    EXPECT_LE(server->buffers().used(), kBytesMax);
  }
  constexpr int64_t kHeld = kBytesMax / (100'000 - BufferBudget::kFreeBytes);
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (server->buffers().refused() < kStrangers - kHeld && absl::Now() < deadline) {
  }
  EXPECT_GE(server->buffers().refused(), kStrangers - kHeld);
  const HttpAnswer answer = testing::Ask(server->address(), head(200'000) + large + large);
  EXPECT_EQ(answer.status, 503) << answer.body;
  strangers.clear();
  // A connection gives its share back when its last owner lets it go, just after it is closed.
  while (server->buffers().used() > 0 && absl::Now() < deadline) {
  }
  EXPECT_EQ(server->buffers().used(), 0);
  EXPECT_EQ(testing::Ask(server->address(), head(200'000) + large + large).body, "200000");
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
