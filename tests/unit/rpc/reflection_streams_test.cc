// Goal: what strangers take from a server by reflection is bounded, in both versions of the
// protocol: long requests are refused before they are parsed, and open streams hold no threads.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/reflection_service.h"
#include "common/rpc/server.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::testing::HasSubstr;

constexpr const char* kMethods[] = {
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};
// Asks for the list of services.
constexpr char kList[] = "\x3a\x01*";

// How a call ends that sends `message` only; sets `answer`.
grpc::Status Ask(grpc::GenericStub& stub, const char* method, const std::string& message,
                 std::string& answer) {
  const grpc::Slice slice(message);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer reply;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
  std::promise<grpc::Status> end;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &reply,
                 [&end](grpc::Status status) { end.set_value(std::move(status)); });
  const grpc::Status status = end.get_future().get();
  grpc::Slice bytes;
  if (status.ok() && reply.DumpToSingleSlice(&bytes).ok())
    answer.assign(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  return status;
}

// `bytes` (even) of a request's message, in fields that no request has.
std::string Unknown(size_t bytes) {
  std::string message(bytes, '\0');
  for (size_t i = 0; i < bytes; i += 2) message[i] = 0x62;
  return message;
}

// A stream that says nothing.
class Silent final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Silent(grpc::GenericStub& stub, const char* method, std::function<void()> ended)
      : ended_(std::move(ended)) {
    stub.PrepareBidiStreamingCall(&context_, method, grpc::StubOptions(), this);
    StartRead(&answer_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }
  void OnDone(const grpc::Status&) override { ended_(); }

 private:
  grpc::ClientContext context_;
  grpc::ByteBuffer answer_;
  const std::function<void()> ended_;
};

class ReflectionStreams : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(server_, Server::Start("127.0.0.1:0", {}, kClientLimits));
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

TEST_F(ReflectionStreams, LongRequestsAreNotParsed) {
  for (const char* method : kMethods) {
    std::string answer;
    const grpc::Status refused = Ask(*stub_, method, Unknown(15 << 20), answer);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << method;
    EXPECT_EQ(refused.error_message(), "the request has 15728640 bytes, expected at most 8192");
    const size_t rest =
        kReflectionRequestBytesMax - sizeof(kList);  // of which one is no byte of it
    const grpc::Status longest = Ask(*stub_, method, kList + Unknown(rest), answer);
    EXPECT_TRUE(longest.ok()) << longest.error_message();
    EXPECT_THAT(answer, HasSubstr("grpc.health.v1.Health"));
  }
}

TEST_F(ReflectionStreams, WhatIsNoRequestIsRefused) {
  for (const char* method : kMethods) {
    std::string answer;
    const grpc::Status refused = Ask(*stub_, method, "\x3a\x7fx", answer);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(refused.error_message(), HasSubstr("3 bytes are not a well-formed"));
  }
}

TEST_F(ReflectionStreams, SilentOnesHoldNoThreadsAndKeepNobodyOut) {
  constexpr size_t kStreams = 500;
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const auto before = threads();
  absl::Mutex mutex;
  size_t ended = 0;
  const auto await = [&](size_t count) {
    const auto reached = [&] { return ended >= count; };
    absl::MutexLock lock(&mutex);
    return mutex.AwaitWithTimeout(absl::Condition(&reached), absl::Minutes(1));
  };
  std::deque<Silent> silent;
  for (size_t i = 0; i < kStreams; ++i) {
    silent.emplace_back(*stub_, kMethods[i % 2], [&] {
      absl::MutexLock lock(&mutex);
      ++ended;
    });
  }
  // The server has begun all of them then.
  EXPECT_TRUE(await(kStreams - kReflectionStreamsMax));
  EXPECT_LT(threads(), before + kStreams / 2);
  for (const char* method : kMethods) {
    std::string answer;
    const grpc::Status status = Ask(*stub_, method, kList, answer);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_THAT(answer, HasSubstr("grpc.health.v1.Health"));
  }
  for (Silent& stream : silent) stream.Cancel();
  EXPECT_TRUE(await(kStreams));
}

}  // namespace
}  // namespace tandem::rpc
