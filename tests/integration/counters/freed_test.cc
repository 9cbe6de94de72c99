// Goal: when a client goes away, routers hear of the room it leaves at once: before any heartbeat
// or deadline, all of which are set far beyond what the test waits for. Prints how long it took.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>

#include "cli/client/client.h"
#include "tests/testing/program_run.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::testing {
namespace {

constexpr int kRounds = 20;

class RoomLeft : public ::testing::Test {
 protected:
  void SetUp() override {
    router_ = *RunningProgram::Start({"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0",
                                      "--fleet=127.0.0.1:0", "--heartbeat-interval=600s",
                                      "--node-lost-after=3600s", "--prefill-deadline=3600s",
                                      "--token-deadline=3600s", "--local-prefill-tokens=0"});
    const std::string grpc = router_->AwaitField("router started", "grpc");
    ASSERT_FALSE(grpc.empty()) << router_->log();
    client_ = cli::Client::Create(grpc);
    const std::string fleet = router_->AwaitField("router started", "fleet");
    for (const char* role : {"prefill", "decode"}) {
      nodes_.push_back(*RunningProgram::Start(
          {absl::StrCat("tandem-", role, "-node"), "--engine=hash", "--kv-blocks=256",
           "--routers=" + fleet, "--max-batch-tokens=16", "--hash-step-time=2ms"}));
      ASSERT_FALSE(nodes_.back()->AwaitLine("joined router").empty()) << nodes_.back()->log();
    }
  }

  static v1::GenerateRequest Request(int prompt_tokens, int salt) {
    v1::GenerateRequest request;
    for (int i = 0; i < prompt_tokens; ++i) request.mutable_tokens()->add_ids(i % 256);
    request.mutable_stop()->set_max_tokens(2000);
    request.set_cache_salt(absl::StrCat("round-", salt));
    request.set_return_token_ids(true);
    return request;
  }
  // From a client's leaving to both legs' freedom, as the router knows it.
  void ExpectFreedAtOnce(const char* what, int prompt_tokens, int leaves_after_tokens) {
    std::vector<absl::Duration> times;
    for (int round = 0; round < kRounds; ++round) {
      int seen = 0;
      ASSERT_OK(client_->Generate(Request(prompt_tokens, round * 10 + leaves_after_tokens),
                                  [&](const v1::GenerateResponse& part) {
                                    seen += part.delta().tokens_size();
                                    return seen < leaves_after_tokens;
                                  }));
      const absl::Time left = absl::Now();
      ASSERT_OK(AwaitQuiet(*client_, absl::Seconds(60)).status()) << what;
      times.push_back(absl::Now() - left);
    }
    std::sort(times.begin(), times.end());
    std::printf("%s: both legs free after %s (median), %s (longest of %d)\n", what,
                absl::FormatDuration(times[times.size() / 2]).c_str(),
                absl::FormatDuration(times.back()).c_str(), kRounds);
  }

  std::unique_ptr<RunningProgram> router_;
  std::vector<std::unique_ptr<RunningProgram>> nodes_;
  std::unique_ptr<cli::Client> client_;
};

TEST_F(RoomLeft, IsKnownBeforeAnyHeartbeat) {
  // The prompt takes 50 steps of 2 ms: clients that leave at once leave while it is computed.
  ExpectFreedAtOnce("while the prompt is computed", 800, 0);
  ExpectFreedAtOnce("at the first token, while the prompt moves", 800, 1);
  ExpectFreedAtOnce("while the answer is generated", 200, 20);
}

}  // namespace
}  // namespace tandem::testing
