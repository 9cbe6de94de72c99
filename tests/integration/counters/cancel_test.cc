// Goal: a client that goes away frees both legs, whatever they were doing: computing the prompt,
// moving it, generating; whether it cancels politely or its process is killed.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include "common/rpc/status.h"
#include "tandem/v1/client.grpc.pb.h"
#include "tests/testing/program_run.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

// Far above what was seen (tens of milliseconds; node loads are told once a second), far below any
// deadline that would clean up in the end.
constexpr absl::Duration kFreedWithin = absl::Seconds(15);

class ClientsThatLeave : public ::testing::Test {
 protected:
  void SetUp() override {
    // Steps slow enough that a prompt of 2,000 tokens takes a second, an answer of 2,000 ten. Each
    // prompt has two legs, whatever times were measured.
    ASSERT_OK_AND_ASSIGN(cluster_,
                         TestCluster::Start({"--engine=hash", "--prefill=1", "--decode=1",
                                             "--kv-blocks=256", "--max-batch-tokens=16",
                                             "--hash-step-time=5ms", "--local-prefill-tokens=0"}));
  }
  void TearDown() override {
    if (cluster_ == nullptr) return;
    ASSERT_OK_AND_ASSIGN(const auto status, cluster_->client().GetStatus(absl::Seconds(5)));
    EXPECT_EQ(status.router().diverged_tokens(), 0);
    EXPECT_EQ(cluster_->Stop(), "exit code 0");
  }

  static v1::GenerateRequest Request(int prompt_tokens, int salt) {
    v1::GenerateRequest request;
    for (int i = 0; i < prompt_tokens; ++i)
      request.mutable_tokens()->add_ids((i * 13 + salt) % 256);
    request.mutable_tokens()->set_ids(0, salt % 256);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stop()->set_max_tokens(2000);
    request.mutable_stop()->set_ignore_eos(true);
    request.set_return_token_ids(true);
    return request;
  }

  void ExpectFreed(const char* what) {
    const absl::Time begin = absl::Now();
    const auto status = AwaitQuiet(cluster_->client(), kFreedWithin);
    EXPECT_OK(status.status()) << what;
    std::printf("%s: both legs free after %s\n", what,
                absl::FormatDuration(absl::Now() - begin).c_str());
  }
  // Waits until the cluster holds something of kind `what`, such as "exports".
  void AwaitHeld(const std::string& what) {
    const auto missing = [&](const v1::GetStatusResponse& status) -> std::string {
      return absl::StrContains(Holdings(status), what) ? "" : what + " were never held";
    };
    EXPECT_OK(AwaitStatus(cluster_->client(), absl::Seconds(10), missing).status());
  }

  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(ClientsThatLeave, WhileTheAnswerIsGenerated) {
  for (const int tokens : {1, 2, 40}) {
    int seen = 0;
    ASSERT_OK(cluster_->client().Generate(Request(100, tokens), [&](const auto& part) {
      seen += part.delta().tokens_size();
      return seen < tokens;
    }));
    EXPECT_GE(seen, tokens);
    ExpectFreed(absl::StrCat("cancelled at token ", tokens).c_str());
  }
}

TEST_F(ClientsThatLeave, WhileThePromptIsComputedAndMoves) {
  ASSERT_OK(cluster_->client().Generate(Request(2000, 1), [&](const v1::GenerateResponse& part) {
    EXPECT_TRUE(part.has_started());
    return false;
  }));
  ExpectFreed("cancelled at once");
  ASSERT_OK(cluster_->client().Generate(Request(2000, 2), [&](const v1::GenerateResponse& part) {
    EXPECT_TRUE(part.has_started());
    AwaitHeld("prefill-0 exports");
    return false;
  }));
  ExpectFreed("cancelled in prefill");
}

TEST_F(ClientsThatLeave, ByBeingKilled) {
  ASSERT_OK_AND_ASSIGN(
      const auto killed,
      RunningProgram::Start({"tandem", "generate", "--json", "--ignore-eos", "--max-tokens=2000",
                             "--router=" + cluster_->address(), std::string(200, 'x')}));
  ASSERT_FALSE(killed->AwaitLine("\"delta\"").empty()) << killed->log();
  killed->Signal(SIGKILL);
  EXPECT_EQ(killed->AwaitEnd().value_or("goes on"), "signal 9");
  ExpectFreed("client process killed");
}

TEST_F(ClientsThatLeave, ByAbort) {
  v1::GenerateRequest request = Request(100, 9);
  request.set_request_id("to-be-aborted");
  const auto stub = v1::Tandem::NewStub(
      grpc::CreateChannel(cluster_->address(), grpc::InsecureChannelCredentials()));
  const auto abort = [&](const std::string& id) {
    grpc::ClientContext context;
    v1::AbortRequest ask;
    v1::AbortResponse response;
    ask.set_request_id(id);
    return rpc::FromGrpc(stub->Abort(&context, ask, &response));
  };
  int seen = 0;
  v1::Finished finished;
  ASSERT_OK(cluster_->client().Generate(request, [&](const v1::GenerateResponse& part) {
    if (part.has_finished()) finished = part.finished();
    const bool third = seen < 3 && seen + part.delta().tokens_size() >= 3;
    seen += part.delta().tokens_size();
    if (third) {
      EXPECT_OK(abort("to-be-aborted"));
    }
    return true;
  }));
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_ABORTED);
  EXPECT_EQ(finished.usage().output_tokens(), seen);
  EXPECT_LT(seen, 2000);
  EXPECT_OK(abort("to-be-aborted"));  // it is over: nothing to do
  ExpectFreed("aborted by name");
}

}  // namespace
}  // namespace tandem::testing
