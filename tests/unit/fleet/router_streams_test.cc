// Goal: a stream to a router begins with the registration, whatever other threads send meanwhile. A
// node ends for refusals only if no router ever welcomed it, or if each router's last word is one.
// Reports go from router to router, also while the streams end one after the other.
#include "common/node/router_streams.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/rpc/server.h"
#include "tandem/v1/fleet.grpc.pb.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

// A router that answers each registration as the test says.
class ScriptedRouter final : public v1::Fleet::Service {
 public:
  ScriptedRouter() { server_ = *rpc::Server::Start("127.0.0.1:0", {this}, rpc::kClientLimits); }
  ~ScriptedRouter() override {
    EndStreams();
    server_->Shutdown(absl::Seconds(5));
  }
  std::string address() const { return server_->address(); }
  // OK: it welcomes nodes.
  void Answer(grpc::Status answer) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  // Ends streams at once, before it reads a message.
  void RefuseUnread(grpc::Status answer) {
    absl::MutexLock lock(&mutex_);
    reads_ = false;
    answer_ = std::move(answer);
  }
  void EndStreams() {
    absl::MutexLock lock(&mutex_);
    for (grpc::ServerContext* context : open_) context->TryCancel();
  }
  // It sends a report after another to each node that it welcomes, until the stream ends.
  void ReportAlways() {
    absl::MutexLock lock(&mutex_);
    reports_ = true;
  }
  // It does not see that a node ends its stream, until EndStreams.
  void HoldStreams() {
    absl::MutexLock lock(&mutex_);
    holds_ = true;
  }
  // Reports of other routers that it got.
  int relayed() const {
    absl::MutexLock lock(&mutex_);
    return relayed_;
  }
  // Streams that began with something else than a registration.
  int ill_begun() const {
    absl::MutexLock lock(&mutex_);
    return ill_begun_;
  }

 private:
  grpc::Status Join(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::RouterMessage, v1::NodeMessage>* stream) override {
    stream->SendInitialMetadata();
    v1::NodeMessage message;
    {
      absl::MutexLock lock(&mutex_);
      if (!reads_) return answer_;
    }
    if (!stream->Read(&message)) return grpc::Status::OK;
    {
      absl::MutexLock lock(&mutex_);
      ill_begun_ += message.has_registration() ? 0 : 1;
      if (!answer_.ok()) return answer_;
      open_.push_back(context);
    }
    v1::RouterMessage welcome;
    welcome.mutable_welcome()->set_router_id("router");
    stream->Write(welcome);
    if (reports()) {
      v1::RouterMessage report;
      report.mutable_report()->set_version(1);
      while (stream->Write(report)) {
      }
    }
    while (stream->Read(&message)) {
      absl::MutexLock lock(&mutex_);
      relayed_ += message.reports_size();
    }
    absl::MutexLock lock(&mutex_);
    const auto ended = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return !holds_ || context->IsCancelled();
    };
    while (!mutex_.AwaitWithTimeout(absl::Condition(&ended), absl::Milliseconds(10))) {
    }
    open_.erase(std::find(open_.begin(), open_.end(), context));
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "it ends");
  }

  bool reports() const {
    absl::MutexLock lock(&mutex_);
    return reports_;
  }

  mutable absl::Mutex mutex_;
  grpc::Status answer_ ABSL_GUARDED_BY(mutex_);
  bool reports_ ABSL_GUARDED_BY(mutex_) = false, holds_ ABSL_GUARDED_BY(mutex_) = false;
  int relayed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reads_ ABSL_GUARDED_BY(mutex_) = true;
  int ill_begun_ ABSL_GUARDED_BY(mutex_) = 0;
  // Bound: the test's streams.
  std::vector<grpc::ServerContext*> open_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<rpc::Server> server_;
};

const grpc::Status kRefusal(grpc::StatusCode::FAILED_PRECONDITION, "another release");

class RouterStreamsTest : public ::testing::Test {
 protected:
  void Connect(const std::vector<const ScriptedRouter*>& routers) {
    std::vector<std::string> addresses;
    for (const ScriptedRouter* router : routers) addresses.push_back(router->address());
    streams_ =
        RouterStreams::Create(addresses, {}, [this](const RouterStreamEvent& event) { On(event); });
  }
  void On(const RouterStreamEvent& event) {
    if (const auto* connected = std::get_if<RouterConnected>(&event)) {
      if (registers_) streams_->Send(connected->router, Registration());
    } else if (const auto* gone = std::get_if<RouterGone>(&event)) {
      absl::MutexLock lock(&mutex_);
      ends_ += 1;
      refusals_ += absl::IsFailedPrecondition(gone->status) ? 1 : 0;
    }
  }
  v1::NodeMessage Registration() const {
    v1::NodeMessage message;
    message.mutable_registration()->set_node_id("node");
    message.mutable_registration()->mutable_cached_blocks()->assign(cached_bytes_, 'b');
    message.add_events()->mutable_draining();
    return message;
  }
  // Lets the node reconnect until that is so. The streams' time is the test's: no backoff is long.
  void Await(const std::function<bool()>& done) {
    const absl::Time give_up = absl::Now() + absl::Seconds(60);
    while (!done()) {
      ASSERT_LT(absl::Now(), give_up);
      now_ += absl::Seconds(1);
      streams_->Tick(now_);
      std::this_thread::yield();
    }
  }
  int refusals() const {
    absl::MutexLock lock(&mutex_);
    return refusals_;
  }
  int ends() const {
    absl::MutexLock lock(&mutex_);
    return ends_;
  }
  void AwaitRefusals(int more) {
    const int count = refusals() + more;
    Await([&] { return refusals() >= count; });
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  bool registers_ = true;
  size_t cached_bytes_ = 0;
  mutable absl::Mutex mutex_;
  int ends_ ABSL_GUARDED_BY(mutex_) = 0, refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<RouterStreams> streams_;
};

// A large registration takes long to cut. The other thread sends as soon as the streams know a
// router that is registered, as the heartbeat thread may.
TEST_F(RouterStreamsTest, NoHeartbeatOvertakesTheRegistration) {
  ScriptedRouter router;
  cached_bytes_ = size_t{32} << 20;
  for (int i = 0; i < 3; ++i) {
    Connect({&router});
    std::thread heartbeats([&] {
      while (streams_->open().empty()) std::this_thread::yield();
      v1::NodeMessage heartbeat;
      heartbeat.mutable_load()->set_blocks_total(1);
      streams_->Broadcast(heartbeat);
    });
    Await([&] { return streams_->welcomed_count() == 1; });
    heartbeats.join();
    streams_.reset();
  }
  EXPECT_EQ(router.ill_begun(), 0);
}

TEST_F(RouterStreamsTest, AnEndBeforeTheRegistrationIsNoRefusal) {
  ScriptedRouter router;
  router.RefuseUnread({grpc::StatusCode::INVALID_ARGUMENT, "expected a registration"});
  registers_ = false;
  Connect({&router});
  Await([&] { return ends() >= 1; });
  EXPECT_OK(streams_->refused());
}

TEST_F(RouterStreamsTest, WhoWasNeverWelcomedEndsWithTheFirstRefusal) {
  ScriptedRouter refuses;
  refuses.Answer(kRefusal);
  ScriptedRouter silent;
  silent.RefuseUnread({grpc::StatusCode::UNAVAILABLE, "not yet"});
  Connect({&refuses, &silent});
  AwaitRefusals(1);
  EXPECT_EQ(streams_->refused().message(), kRefusal.error_message());
}

TEST_F(RouterStreamsTest, OneRefusalEndsNoNodeThatAnotherRouterServed) {
  ScriptedRouter refuses, serves;
  refuses.Answer(kRefusal);
  Connect({&refuses, &serves});
  Await([&] { return streams_->welcomed_count() == 1; });
  AwaitRefusals(2);
  EXPECT_OK(streams_->refused());
  // The router that serves the node restarts.
  serves.RefuseUnread({grpc::StatusCode::UNAVAILABLE, "not yet"});
  serves.EndStreams();
  Await([&] { return streams_->welcomed_count() == 0; });
  AwaitRefusals(1);
  EXPECT_OK(streams_->refused()) << "it may come back";
}

TEST_F(RouterStreamsTest, RefusalsByAllRoutersEndTheNode) {
  ScriptedRouter first, second;
  first.Answer(kRefusal);
  Connect({&first, &second});
  Await([&] { return streams_->welcomed_count() == 1; });
  AwaitRefusals(2);
  // The other one now runs another release, too.
  second.Answer(kRefusal);
  second.EndStreams();
  Await([&] { return !streams_->refused().ok(); });
  EXPECT_EQ(streams_->refused().message(), kRefusal.error_message());
  // One that welcomes the node again takes its refusal back.
  first.Answer(grpc::Status::OK);
  Await([&] { return streams_->welcomed_count() == 1; });
  EXPECT_OK(streams_->refused());
}

// The first router's stream ends late, so the second one's reports come while the first is closed.
TEST_F(RouterStreamsTest, ReportsAreRelayedUntilTheStreamsEnd) {
  for (int i = 0; i < 3; ++i) {
    ScriptedRouter hangs, reports;
    hangs.HoldStreams();
    reports.ReportAlways();
    Connect({&hangs, &reports});
    Await([&] { return hangs.relayed() > 0; });
    streams_.reset();
    EXPECT_EQ(reports.relayed(), 0);
    hangs.EndStreams();
  }
}

}  // namespace
}  // namespace tandem::node
