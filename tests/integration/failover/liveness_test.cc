// Goal: a node whose engine is stuck in a step says so: its liveness ends after the progress
// deadline, though its process, its port and its heartbeats go on; with nothing to do it is live.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <thread>

#include "cli/client/client.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"

namespace tandem::testing {
namespace {

// What grpc.health.v1.Health/Check answers for the service "": 1 = serving, 2 = not; -1 = no
// answer.
int HealthOf(const std::string& address) {
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channel);
  grpc::ClientContext context;
  grpc::ByteBuffer request(nullptr, 0), response;
  grpc::CompletionQueue queue;
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  if (!queue.Next(&tag, &ok) || !status.ok()) return -1;
  grpc::Slice slice;
  // A message of one field: number 1, a small number.
  if (!response.DumpToSingleSlice(&slice).ok() || slice.size() != 2) return -1;
  return slice.begin()[1];
}

TEST(Liveness, EndsWhenAStepDoesNotEnd) {
  const auto router = *RunningProgram::Start(
      {"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0"});
  const std::string grpc = router->AwaitField("router started", "grpc");
  ASSERT_FALSE(grpc.empty()) << router->log();
  const auto node = *RunningProgram::Start(
      {"tandem-decode-node", "--engine=hash", "--kv-blocks=64", "--hash-step-time=10000s",
       "--progress-deadline=1s", "--routers=" + router->AwaitField("router started", "fleet")});
  ASSERT_FALSE(node->AwaitLine("joined router").empty()) << node->log();
  const std::string health = node->AwaitField("node started", "health");
  EXPECT_EQ(HealthOf(health), 1) << "idle";

  const auto client = cli::Client::Create(grpc);
  std::thread asking([&] {
    v1::GenerateRequest request;
    request.mutable_tokens()->add_ids(1);
    EXPECT_FALSE(client->Generate(request, [](const auto&) { return true; }).ok());
  });
  absl::Mutex mutex;
  const bool never = false;
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  int state = 0;
  while ((state = HealthOf(health)) != 2 && absl::Now() < give_up) {
    absl::MutexLock lock(&mutex);
    mutex.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(50));
  }
  EXPECT_EQ(state, 2) << "an engine step has not ended for long";
  EXPECT_TRUE(node->running());
  router->Signal(SIGKILL);
  asking.join();
}

}  // namespace
}  // namespace tandem::testing
