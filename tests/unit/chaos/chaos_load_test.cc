// Goal: waiting for the clients of a chaos run takes no longer than its timeout, and can be
// interrupted, while a client waits for a router that never answers. A failure that a second call
// hides is told, unless there was only no room.
#include "cli/chaos/chaos_load.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/runtime/clock.h"
#include "tandem/v1/client.grpc.pb.h"

namespace tandem::cli {
namespace {

// A router that takes connections and says nothing.
class SilentRouter {
 public:
  SilentRouter() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address_);
    auto* const address = reinterpret_cast<sockaddr*>(&address_);
    EXPECT_EQ(::bind(listener_, address, length), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    EXPECT_EQ(::getsockname(listener_, address, &length), 0);
  }
  ~SilentRouter() {
    if (connection_ >= 0) ::close(connection_);
    ::close(listener_);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", ntohs(address_.sin_port)); }
  void AwaitClient() {
    connection_ = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    EXPECT_GE(connection_, 0);
  }

 private:
  const int listener_;
  int connection_ = -1;
  sockaddr_in address_ = {};
};

class ChaosLoadTest : public ::testing::Test {
 protected:
  // With one client, which waits for the router.
  std::unique_ptr<ChaosLoad> Start() {
    ChaosLoad::Options options;
    options.routers = {router_.address()};
    v1::GenerateRequest request;
    request.mutable_tokens()->add_ids(1);
    request.mutable_stop()->set_max_tokens(1);
    options.requests = {request};
    options.expected.resize(1);
    options.clients = 1;
    options.patience = options.give_up_after = absl::Hours(1);
    auto load = ChaosLoad::Start(options, RealClock().Now());
    router_.AwaitClient();
    return load;
  }

  SilentRouter router_;
};

// Without the interrupt it would take an hour.
TEST_F(ChaosLoadTest, WaitingForClientsCanBeInterrupted) {
  const auto load = Start();
  int asked = 0;
  EXPECT_FALSE(load->Finish(absl::Hours(1), [&asked] { return ++asked == 2; }));
  EXPECT_EQ(asked, 2);
}

TEST_F(ChaosLoadTest, WaitingForClientsEndsWithTheTimeout) {
  const auto load = Start();
  EXPECT_FALSE(load->Finish(absl::ZeroDuration(), [] { return false; }));
}

// A router that fails the first call of each request, and answers the next one with one token.
class ForgetfulRouter final : public v1::Tandem::Service {
 public:
  explicit ForgetfulRouter(grpc::StatusCode first) : first_(first) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~ForgetfulRouter() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    if (Calls(request->request_id()) == 1) return {first_, "of the test"};
    v1::GenerateResponse part;
    part.mutable_delta()->add_tokens()->set_token_id(7);
    part.mutable_delta()->set_text("x");
    writer->Write(part);
    part.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
    writer->Write(part);
    return grpc::Status::OK;
  }

 private:
  // How often the request was sent, this time included.
  int Calls(const std::string& id) {
    absl::MutexLock lock(&mutex_);
    return ++calls_[id];
  }

  const grpc::StatusCode first_;
  int port_ = 0;
  absl::Mutex mutex_;
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

// Records the answers to two requests; returns why each of them was not calm.
std::vector<std::string> Record(grpc::StatusCode first) {
  ForgetfulRouter router(first);
  ChaosLoad::Options options;
  options.routers = {router.address()};
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(1);
  request.mutable_stop()->set_max_tokens(1);
  options.requests = {request, request};
  options.clients = 1;
  const ChaosLoad::Recording recording = ChaosLoad::Record(options, [] { return false; });
  std::vector<std::string> why;
  for (const ChaosRequest& record : recording.records) {
    EXPECT_EQ(record.end, ChaosRequest::End::kWhole) << record.what;
    EXPECT_EQ(record.calls, 2);
    why.push_back(WhyNotCalm(record));
  }
  return why;
}

TEST(ChaosLoadRecord, AFailureThatASecondCallHidesIsTold) {
  using ::testing::HasSubstr;
  EXPECT_THAT(Record(grpc::StatusCode::UNAVAILABLE),
              ::testing::ElementsAre(HasSubstr("asked again after UNAVAILABLE: of the test"),
                                     HasSubstr("asked again after UNAVAILABLE: of the test")));
}

TEST(ChaosLoadRecord, ARefusalForLackOfRoomIsAllowed) {
  EXPECT_THAT(Record(grpc::StatusCode::RESOURCE_EXHAUSTED), ::testing::ElementsAre("", ""));
}

}  // namespace
}  // namespace tandem::cli
