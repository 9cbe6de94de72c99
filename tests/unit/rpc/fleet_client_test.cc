// Goal: a node that holds the fleet's secret hears nothing of a router that does not prove it: not
// without a proof, nor with one under another secret, of another stream, or of another Welcome. It
// then tries again, and hears the right router. Without a secret it hears any.
#include "common/rpc/fleet_client.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/rpc/join_proof.h"
#include "common/rpc/server.h"
#include "tandem/v1/fleet.grpc.pb.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::testing::HasSubstr;

constexpr char kSecret[] = "of this fleet";

// A router that answers registrations as the test says.
class ScriptedRouter final : public v1::Fleet::Service {
 public:
  using Answer = std::function<void(const std::string& challenge, const v1::Registration&,
                                    v1::Welcome& welcome)>;
  void Use(Answer answer) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }

 private:
  grpc::Status Join(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::RouterMessage, v1::NodeMessage>* stream) override {
    const std::string challenge = NewChallenge();
    context->AddInitialMetadata(kChallengeKey, challenge);
    stream->SendInitialMetadata();
    v1::NodeMessage message;
    if (!stream->Read(&message)) return grpc::Status::OK;
    v1::RouterMessage first, command;
    first.mutable_welcome()->set_router_id("router");
    {
      absl::MutexLock lock(&mutex_);
      answer_(challenge, message.registration(), *first.mutable_welcome());
    }
    command.add_commands()->mutable_abort()->set_reason("do as I say");
    stream->Write(first);
    stream->Write(command);
    while (stream->Read(&message)) {
    }
    return grpc::Status::OK;
  }

  absl::Mutex mutex_;
  Answer answer_ ABSL_GUARDED_BY(mutex_);
};

class FleetClientTest : public ::testing::Test, public FleetClient::Listener {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(server_, Server::Start("127.0.0.1:0", {&router_}, kNodeLimits));
  }
  void TearDown() override {
    client_.reset();
    server_->Shutdown(absl::Seconds(5));
  }
  void Connect(const std::string& secret, ScriptedRouter::Answer answer) {
    router_.Use(std::move(answer));
    client_ = FleetClient::Create(server_->address(), *this, {.secret = secret});
  }
  // Lets the client reconnect until `count` streams have ended, or a Welcome has come.
  void Await(int count) {
    const absl::Time give_up = absl::Now() + absl::Seconds(60);
    // The client's time is the test's: no backoff takes long.
    for (absl::Time now = absl::Now(); absl::Now() < give_up; now += absl::Seconds(1)) {
      client_->Tick(now);
      absl::MutexLock lock(&mutex_);
      const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return static_cast<int>(ends_.size()) >= count || commands_ > 0;
      };
      if (mutex_.AwaitWithTimeout(absl::Condition(&done), absl::Milliseconds(20))) return;
    }
    ADD_FAILURE() << "neither welcomed nor refused";
  }
  void ExpectRefused(const std::string& secret, ScriptedRouter::Answer answer) {
    Connect(secret, std::move(answer));
    Await(3);
    client_.reset();
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(messages_, 0);
    ASSERT_GE(ends_.size(), 3u) << "the node goes on trying";
    // A node does not end for what an impostor says.
    EXPECT_EQ(ends_[0].code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(ends_[0].message()),
                ::testing::AllOf(HasSubstr("router 'router'"), HasSubstr("fleet-secret-file")));
    ends_.clear();
  }
  void ExpectHeard(const std::string& secret, ScriptedRouter::Answer answer) {
    Connect(secret, std::move(answer));
    Await(1);
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(messages_, 2);
    EXPECT_EQ(commands_, 1);
  }

  void OnConnected(FleetClient& client, uint64_t connection) override {
    v1::NodeMessage message;
    message.mutable_registration()->set_node_id("node");
    client.Send(connection, std::move(message));
  }
  void OnMessage(FleetClient&, uint64_t, v1::RouterMessage message) override {
    absl::MutexLock lock(&mutex_);
    ++messages_;
    commands_ += message.commands_size();
  }
  void OnDisconnected(FleetClient&, uint64_t, const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    ends_.push_back(status);
  }

  ScriptedRouter router_;
  std::unique_ptr<Server> server_;
  absl::Mutex mutex_;
  int messages_ ABSL_GUARDED_BY(mutex_) = 0;
  int commands_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<absl::Status> ends_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<FleetClient> client_;
};

void Prove(const std::string& challenge, const v1::Registration& registration,
           v1::Welcome& welcome) {
  EXPECT_OK(CheckJoinProof(kSecret, challenge, registration));
  ProveWelcome(kSecret, registration.proof(), welcome);
}

TEST_F(FleetClientTest, HearsARouterThatProvesTheSecret) { ExpectHeard(kSecret, Prove); }

TEST_F(FleetClientTest, HearsAnyRouterWithoutASecret) {
  ExpectHeard("", [](const std::string&, const v1::Registration&, v1::Welcome&) {});
}

TEST_F(FleetClientTest, HearsNothingOfRoutersWithoutTheSecret) {
  ExpectRefused(kSecret, [](const std::string&, const v1::Registration&, v1::Welcome&) {});
  ExpectRefused(kSecret,
                [](const std::string&, const v1::Registration& registration, v1::Welcome& welcome) {
                  ProveWelcome("a guess", registration.proof(), welcome);
                });
  // The node's own proof is no router's.
  ExpectRefused(kSecret, [](const std::string&, const v1::Registration& registration,
                            v1::Welcome& welcome) { welcome.set_proof(registration.proof()); });
  // Right, and then changed.
  ExpectRefused(kSecret, [](const std::string& challenge, const v1::Registration& registration,
                            v1::Welcome& welcome) {
    Prove(challenge, registration, welcome);
    welcome.set_heartbeat_interval_s(1e9);
  });
}

// What a true router said on one stream, with that stream's challenge, is worth nothing later.
TEST_F(FleetClientTest, HearsNoReplay) {
  v1::Welcome overheard;
  ExpectHeard(kSecret, [&](const std::string& challenge, const v1::Registration& registration,
                           v1::Welcome& welcome) {
    Prove(challenge, registration, welcome);
    overheard = welcome;
  });
  client_.reset();
  {
    absl::MutexLock lock(&mutex_);
    messages_ = commands_ = 0;
    ends_.clear();
  }
  ExpectRefused(kSecret, [&](const std::string&, const v1::Registration&, v1::Welcome& welcome) {
    welcome = overheard;
  });
}

}  // namespace
}  // namespace tandem::rpc
