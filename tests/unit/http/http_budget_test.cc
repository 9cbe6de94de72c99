// Goal: the memory for what waits on HTTP connections is not for a few clients to keep. Requests
// that are sent ahead count while an answer is being made, and slow readers let go of what they
// hold when little is left for others.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "router/front_end/http/http_server.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using testing::HttpAnswer;
using testing::HttpSocket;

constexpr absl::Duration kPatience = absl::Seconds(30);

HttpServerOptions BudgetOf(int64_t bytes_max, ConnectionLimits limits) {
  HttpServerOptions options;
  options.address = "127.0.0.1:0";
  options.threads = 1;
  options.limits = limits;
  options.buffer_bytes_max = bytes_max;
  return options;
}

// Whether `condition` comes to hold.
template <typename Condition>
bool Comes(const Condition& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
  }
  return true;
}

// Keeps all exchanges unanswered.
class Unanswered {
 public:
  HttpConnection::Hooks Hooks() {
    HttpConnection::Hooks hooks;
    hooks.handle = [this](HttpRequest, std::shared_ptr<HttpExchange> exchange) {
      absl::MutexLock lock(&mutex_);
      exchanges_.push_back(std::move(exchange));
    };
    hooks.fault = [](int status, const std::string& message, const auto&) {
      return HttpReply{status, "text/plain", message};
    };
    return hooks;
  }
  size_t size() {
    absl::MutexLock lock(&mutex_);
    return exchanges_.size();
  }
  void AnswerAll() {
    absl::MutexLock lock(&mutex_);
    for (auto& exchange : exchanges_) {
      exchange->Post([exchange] { exchange->Reply({200, "text/plain", "whole"}); });
    }
    exchanges_.clear();
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<HttpExchange>> exchanges_ ABSL_GUARDED_BY(mutex_);
};

// Three clients send 60,000 bytes of a second request behind a first one. There is room for two.
TEST(HttpBudget, CountsWhatIsSentAhead) {
  constexpr int64_t kBytesMax = 110'000;
  constexpr int64_t kAhead = 60'000 - BufferBudget::kFreeBytes;
  Unanswered unanswered;
  ASSERT_OK_AND_ASSIGN(auto server, HttpServer::Start(BudgetOf(kBytesMax, {}), unanswered.Hooks()));
  const std::string begun =
      "POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 70000\r\n\r\n" + std::string(60'000, 'x');
  std::vector<std::unique_ptr<HttpSocket>> clients;
  for (size_t i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<HttpSocket>(server->address()));
    ASSERT_TRUE(clients[i]->Send(testing::GetOf("/") + begun));
    ASSERT_TRUE(Comes([&] { return unanswered.size() == i + 1; }));
    const auto held = static_cast<int64_t>(std::min<size_t>(i + 1, 2));
    ASSERT_TRUE(Comes([&] { return server->buffers().used() >= held * kAhead; })) << i;
  }
  ASSERT_TRUE(Comes([&] { return server->buffers().refused() > 0; }));
  EXPECT_LE(server->buffers().used(), kBytesMax);
  unanswered.AnswerAll();
  for (size_t i = 0; i < 3; ++i) {
    const HttpAnswer answer = clients[i]->Read();
    EXPECT_EQ(answer.body, "whole") << i;
    EXPECT_EQ(answer.Header("connection"), i < 2 ? "" : "close") << i;
  }
  EXPECT_FALSE(clients[2]->ReadSome()) << "its second request was dropped";
  for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(clients[i]->Send(std::string(10'000, 'x')));
  ASSERT_TRUE(Comes([&] { return unanswered.size() == 2; })) << "theirs were not";
  unanswered.AnswerAll();
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(clients[i]->Read().body, "whole");
}

// Its stream finds the socket full and the budget used up. What comes until the connection is
// closed must not follow half a chunk.
TEST(HttpBudget, NothingFollowsAPartThatWasCutOff) {
  std::atomic<bool> writing{false};
  HttpConnection::Hooks hooks;
  hooks.handle = [&writing](HttpRequest, std::shared_ptr<HttpExchange> exchange) {
    exchange->BeginStream({200, "text/plain", "first"});
    exchange->WriteStream(std::string(size_t{24} << 20, 'x'));
    writing = exchange->writing();
    exchange->EndStream(true, "last");
  };
  hooks.fault = [](int status, const std::string& message, const auto&) {
    return HttpReply{status, "text/plain", message};
  };
  ASSERT_OK_AND_ASSIGN(auto server, HttpServer::Start(BudgetOf(100'000, {}), std::move(hooks)));
  HttpSocket slow(server->address());
  ASSERT_TRUE(slow.Send(testing::GetOf("/")));
  ASSERT_TRUE(Comes([&] { return server->buffers().refused() > 0; }));
  while (slow.ReadSome()) {
  }
  EXPECT_TRUE(writing) << "an answer would write on";
  EXPECT_EQ(slow.buffer().find("last"), std::string::npos);
}

// Its answer is 24 MiB, of a budget of 28. It reads some of it all the time, and would take
// minutes. Idle connections are the clock.
TEST(HttpBudget, SlowReadersLetGoWhenItIsScarce) {
  const std::string body(size_t{24} << 20, 'x');
  HttpConnection::Hooks hooks;
  hooks.handle = [&body](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    exchange->Reply({200, "text/plain", request.path == "/large" ? body : "small"});
  };
  hooks.fault = [](int status, const std::string& message, const auto&) {
    return HttpReply{status, "text/plain", message};
  };
  const ConnectionLimits limits = {.idle_timeout = absl::Milliseconds(50),
                                   .write_timeout = absl::Hours(1),
                                   .scarce_pace = absl::Seconds(1)};
  ASSERT_OK_AND_ASSIGN(auto server,
                       HttpServer::Start(BudgetOf(int64_t{28} << 20, limits), std::move(hooks)));
  HttpSocket slow(server->address());
  ASSERT_TRUE(slow.Send(testing::GetOf("/large")));
  ASSERT_TRUE(Comes([&] { return server->buffers().scarce(); }));
  EXPECT_EQ(testing::Ask(server->address(), testing::GetOf("/small")).body, "small");
  EXPECT_TRUE(Comes([&] {
    HttpSocket idle(server->address());
    while (idle.ReadSome()) {
    }
    slow.ReadSome();
    return server->buffers().used() == 0;
  }));
  while (slow.ReadSome()) {
  }
  EXPECT_LT(slow.buffer().size(), body.size());
  // One that reads gets it all.
  EXPECT_EQ(testing::Ask(server->address(), testing::GetOf("/large")).body.size(), body.size());
}

}  // namespace
}  // namespace tandem::router
