// Goal: a router that has too little time refuses over HTTP with 503, when to ask again and how
// long requests waited; its health and metrics still answer; the connection of a refused request is
// kept, and serves the next one as soon as the load has fallen.
#include <gmock/gmock.h>
#include <signal.h>

#include <fstream>
#include <vector>

#include "tests/testing/http_client.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

// All come while the router stands still. However fast it then is, each finds those before it, and
// the last ones have waited for most of them: a standing queue, by a target that none can reach.
constexpr int kRequests = 800;
constexpr char kDelay[] = "--overload-delay=1us";
constexpr char kInterval[] = "--overload-interval=1ms";
constexpr absl::Duration kServedWithin = absl::Seconds(60);

// Asks no node: what the router does itself is to be too much.
std::string Tokenize(int number) {
  return PostOf("/tokenize",
                nlohmann::json({{"prompt", absl::StrCat("one of many, ", number)}}).dump());
}

class HttpShedding : public ::testing::Test {
 protected:
  void SetUp() override {
    auto router = RunningProgram::Start({"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0",
                                         "--fleet=127.0.0.1:0", "--http=0", "--http-threads=1",
                                         kDelay, kInterval});
    ASSERT_OK(router.status());
    router_ = *std::move(router);
    client_ = cli::Client::Create(router_->AwaitField("router started", "grpc"));
    http_ = router_->AwaitField("router started", "http");
    ASSERT_FALSE(http_.empty()) << router_->log();
  }

  // Whether the router stands still, soon after its signal.
  bool AwaitStopped() const {
    const absl::Time deadline = absl::Now() + kServedWithin;
    std::string stat;
    do {
      std::ifstream file(absl::StrCat("/proc/", router_->pid(), "/stat"));
      std::getline(file, stat);
      if (absl::StrContains(stat, ") T ")) return true;
    } while (absl::Now() < deadline);
    return false;
  }

  std::unique_ptr<RunningProgram> router_;
  std::unique_ptr<cli::Client> client_;
  std::string http_;
};

TEST_F(HttpShedding, RefusesWhatItHasNoTimeForAndKeepsTheConnection) {
  std::vector<std::unique_ptr<HttpSocket>> sockets;
  for (int i = 0; i < kRequests; ++i) {
    sockets.push_back(std::make_unique<HttpSocket>(http_));
    // Taken on, and idle.
    ASSERT_TRUE(sockets.back()->Send(GetOf("/version")));
    ASSERT_EQ(sockets.back()->Read().status, 200);
  }
  router_->Signal(SIGSTOP);
  ASSERT_TRUE(AwaitStopped());
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(sockets[static_cast<size_t>(i)]->Send(Tokenize(i)));
  }
  router_->Signal(SIGCONT);

  std::vector<HttpSocket*> refused;
  for (const auto& socket : sockets) {
    const HttpAnswer answer = socket->Read();
    ASSERT_TRUE(answer.complete);
    if (answer.status == 200) continue;
    ASSERT_EQ(answer.status, 503) << answer.body;
    refused.push_back(socket.get());
    EXPECT_EQ(answer.Json()["error"]["type"], "server_error");
    EXPECT_THAT(answer.body, ::testing::HasSubstr("overloaded: a request would wait "));
    int seconds = 0;
    EXPECT_TRUE(absl::SimpleAtoi(answer.Header("retry-after"), &seconds) && seconds >= 1)
        << answer.head;
  }
  EXPECT_LT(refused.size(), sockets.size()) << "a burst is no overload from its first request on";
  ASSERT_FALSE(refused.empty());

  EXPECT_EQ(Ask(http_, GetOf("/live")).status, 200);
  const std::string metrics = Ask(http_, GetOf("/metrics")).body;
  EXPECT_THAT(metrics, ::testing::ContainsRegex(
                           absl::StrCat("tandem_requests_refused_total[{].*reason=\"overload\"[}] ",
                                        refused.size(), "\n")));
  ASSERT_OK_AND_ASSIGN(const v1::GetStatusResponse status, client_->GetStatus(absl::Seconds(10)));
  EXPECT_EQ(status.router().requests_refused(), static_cast<int64_t>(refused.size()));

  // One at a time is no load.
  for (HttpSocket* socket : refused) {
    const absl::Time deadline = absl::Now() + kServedWithin;
    HttpAnswer answer;
    do {
      ASSERT_TRUE(socket->Send(Tokenize(0)));
      answer = socket->Read();
    } while (answer.status == 503 && absl::Now() < deadline);
    ASSERT_EQ(answer.status, 200) << answer.body;
  }
}

}  // namespace
}  // namespace tandem::testing
