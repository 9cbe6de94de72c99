// Goal: what a router cannot place and may not queue is refused at once, over HTTP (429, when to
// ask again) and gRPC alike, while what it has taken on goes on; and what was queued is served in
// full once there is room.
#include <gmock/gmock.h>

#include <deque>

#include "tests/testing/http_client.h"
#include "tests/testing/program_run.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

constexpr int kRunning = 2;  // --max-sequences
constexpr int kQueued = 4;   // --queue-max
constexpr int kTooMany = 12;
constexpr absl::Duration kSettledWithin = absl::Seconds(30);

std::string PromptOf(int number) {
  return absl::StrCat("overload ", number, ": ", std::string(80, static_cast<char>('a' + number)));
}

std::string Request(const std::string& prompt, int tokens, bool stream) {
  return PostOf("/v1/completions", nlohmann::json({{"prompt", prompt},
                                                   {"max_tokens", tokens},
                                                   {"ignore_eos", true},
                                                   {"temperature", 0},
                                                   {"stream", stream}})
                                       .dump());
}

class HttpOverload : public ::testing::Test {
 protected:
  void SetUp() override {
    auto router = RunningProgram::Start(
        {"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0", "--http=0",
         "--id=router-0", "--local-prefill-tokens=0", absl::StrCat("--queue-max=", kQueued)});
    ASSERT_OK(router.status());
    router_ = *std::move(router);
    client_ = cli::Client::Create(router_->AwaitField("router started", "grpc"));
    http_ = router_->AwaitField("router started", "http");
    const std::string fleet = router_->AwaitField("router started", "fleet");
    ASSERT_FALSE(http_.empty() || fleet.empty()) << router_->log();
    for (const std::string kind : {"prefill", "decode"}) {
      auto node = RunningProgram::Start({absl::StrCat("tandem-", kind, "-node"), "--engine=hash",
                                         "--id=" + kind, "--routers=" + fleet, "--kv-blocks=1024",
                                         "--hash-step-time=2ms",
                                         absl::StrCat("--max-sequences=", kRunning)});
      ASSERT_OK(node.status());
      EXPECT_FALSE((*node)->AwaitLine("router_id=router-0").empty()) << (*node)->log();
      nodes_.push_back(*std::move(node));
    }
  }

  void AwaitRequests(int running, int queued) {
    const auto missing = [&](const v1::GetStatusResponse& status) -> std::string {
      const v1::RouterStatus& router = status.router();
      if (router.requests_running() == running && router.requests_queued() == queued) return "";
      return absl::StrCat(router.requests_running(), " requests run, queued are ",
                          router.requests_queued());
    };
    ASSERT_OK(AwaitStatus(*client_, kSettledWithin, missing).status());
  }

  std::unique_ptr<RunningProgram> router_;
  std::vector<std::unique_ptr<RunningProgram>> nodes_;
  std::unique_ptr<cli::Client> client_;
  std::string http_;
};

TEST_F(HttpOverload, IsRefusedAtOnceAndHoldsUpNothingThatRuns) {
  // All places are taken by answers that do not end by themselves.
  std::deque<HttpSocket> running, queued;
  for (int i = 0; i < kRunning; ++i) {
    HttpSocket& socket = running.emplace_back(http_);
    ASSERT_TRUE(socket.Send(Request(PromptOf(20 + i), 8000, true)));
    while (!absl::StrContains(socket.buffer(), "\"text\"")) ASSERT_TRUE(socket.ReadSome());
  }
  for (int i = 0; i < kQueued; ++i) {
    ASSERT_TRUE(queued.emplace_back(http_).Send(Request(PromptOf(i), 40, false)));
  }
  AwaitRequests(kRunning, kQueued);

  // Nothing gives way now: an answer that waited for room would never come.
  for (int i = 0; i < kTooMany; ++i) {
    const HttpAnswer answer = Ask(http_, Request("one more", 1, i % 2 == 0));
    ASSERT_EQ(answer.status, 429) << answer.body;
    EXPECT_EQ(answer.Json()["error"]["type"], "rate_limit_error");
    EXPECT_THAT(answer.body, ::testing::HasSubstr("wait for placement"));
    int seconds = 0;
    EXPECT_TRUE(absl::SimpleAtoi(answer.Header("retry-after"), &seconds) && seconds >= 1)
        << answer.head;
  }
  v1::GenerateRequest request;
  request.set_text("one more");
  request.mutable_stop()->set_max_tokens(1);
  const Answer refused = Collect(*client_, request);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted) << refused.status;
  AwaitRequests(kRunning, kQueued);
  for (HttpSocket& socket : running) {
    const size_t before = socket.buffer().size();
    while (socket.buffer().size() < before + 1000) ASSERT_TRUE(socket.ReadSome());
  }

  // Room: the queued ones are answered, as they would have been alone.
  running.clear();
  std::vector<std::string> texts;
  for (HttpSocket& socket : queued) {
    const HttpAnswer answer = socket.Read();
    ASSERT_EQ(answer.status, 200) << answer.body;
    texts.push_back(answer.Json()["choices"][0]["text"]);
  }
  EXPECT_OK(AwaitQuiet(*client_, kSettledWithin).status());
  for (int i = 0; i < kQueued; ++i) {
    const HttpAnswer alone = Ask(http_, Request(PromptOf(i), 40, false));
    EXPECT_EQ(alone.Json()["choices"][0]["text"], texts[static_cast<size_t>(i)]);
  }
}

}  // namespace
}  // namespace tandem::testing
