// Goal: what the fleet's port takes from strangers is bounded, by number and by time, reaches
// nothing behind it and keeps no node out: streams that say nothing, that begin with something else
// than a registration, or whose registration is not proven, is another stream's, or was changed.
#include <grpcpp/grpcpp.h>

#include <deque>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/bounded_queue.h"
#include "common/rpc/join_proof.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/process/fleet_service.h"
#include "tandem/v1/fleet.grpc.pb.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kSecret[] = "the fleet's";

struct Peer {
  // What does not end within a minute fails its test.
  Peer() { context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60))); }
  void AwaitChallenge() {
    stream->WaitForInitialMetadata();
    const auto& metadata = context.GetServerInitialMetadata();
    const auto found = metadata.find(rpc::kChallengeKey);
    if (found != metadata.end()) challenge.assign(found->second.data(), found->second.size());
  }
  void Register(const v1::Registration& registration) {
    v1::NodeMessage message;
    *message.mutable_registration() = registration;
    stream->Write(message);
  }
  grpc::Status AwaitEnd() {
    v1::RouterMessage message;
    EXPECT_FALSE(stream->Read(&message));
    return stream->Finish();
  }

  std::string challenge;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::NodeMessage, v1::RouterMessage>> stream;
};

v1::Registration RegistrationOf(const std::string& id) {
  v1::Registration registration;
  registration.set_node_id(id);
  registration.set_incarnation(7);
  return registration;
}

class FleetStreams : public ::testing::Test {
 protected:
  void Serve(const FleetService::Options& options, const std::string& at = "127.0.0.1:0") {
    service_ = std::make_unique<FleetService>(inbox_, options);
    ASSERT_OK_AND_ASSIGN(server_, rpc::Server::Start(at, {service_.get()}, rpc::kNodeLimits));
    stub_ = v1::Fleet::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    for (Peer& peer : peers_) peer.context.TryCancel();
    service_->DisconnectAll(absl::UnavailableError("the test ends"));
    server_->Shutdown(absl::Seconds(5));
  }
  // The router has it when this returns.
  Peer& Join() { return Join(*stub_); }
  Peer& Join(v1::Fleet::Stub& stub) {
    Peer& peer = peers_.emplace_back();
    peer.stream = stub.Join(&peer.context);
    peer.AwaitChallenge();
    EXPECT_EQ(peer.challenge.size(), 16);
    return peer;
  }
  void RegisterProven(Peer& peer, const std::string& id) {
    v1::Registration registration = RegistrationOf(id);
    rpc::ProveJoin(kSecret, peer.challenge, registration);
    peer.Register(registration);
  }
  template <typename Item>
  Item Next() {
    auto item = came_.Pop(absl::Seconds(60));
    EXPECT_TRUE(item.has_value() && std::holds_alternative<Item>(*item));
    return item.has_value() && std::holds_alternative<Item>(*item)
               ? std::get<Item>(*std::move(item))
               : Item{};
  }

  BoundedQueue<InboxItem> came_{100};
  Inbox inbox_{100, [this](std::vector<InboxItem>& items) {
                 for (InboxItem& item : items) came_.TryPush(std::move(item));
               }};
  std::unique_ptr<FleetService> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<v1::Fleet::Stub> stub_;
  std::deque<Peer> peers_;
};

TEST_F(FleetStreams, NodesAreBounded) {
  Serve({.secret = "", .streams_max = 2, .strangers_max = 2});
  Join().Register(RegistrationOf("a"));
  EXPECT_EQ(Next<NodeRegistered>().registration.node_id(), "a");
  Join().Register(RegistrationOf("b"));
  EXPECT_EQ(Next<NodeRegistered>().registration.node_id(), "b");
  Peer& third = peers_.emplace_back();
  third.stream = stub_->Join(&third.context);
  const grpc::Status refused = third.AwaitEnd();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("2 nodes' streams are open, the limit is 2"));

  peers_[0].context.TryCancel();
  Next<NodeGone>();
  peers_[0].stream->Finish();
  Join().Register(RegistrationOf("d"));
  EXPECT_EQ(Next<NodeRegistered>().registration.node_id(), "d");
  EXPECT_EQ(service_->streams_refused(), 1);
}

TEST_F(FleetStreams, OfSilentOnesTheOldestMakesRoomForANode) {
  Serve({.secret = kSecret, .streams_max = 100, .strangers_max = 3});
  for (int i = 0; i < 3; ++i) Join();
  RegisterProven(Join(), "honest");
  EXPECT_EQ(Next<NodeRegistered>().registration.node_id(), "honest");
  const grpc::Status ended = peers_[0].AwaitEnd();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(ended.error_message(), HasSubstr("3 streams have not registered, the limit is 3"));
  EXPECT_EQ(service_->streams_refused(), 1);
}

// The node is busy: it joined, and registers after its step. Two addresses of this machine.
TEST_F(FleetStreams, AFloodFromOneAddressEndsNoBusyNodeOfAnother) {
  if (std::ifstream("/proc/net/if_inet6").peek() == EOF) GTEST_SKIP() << "this machine has no IPv6";
  Serve({.secret = kSecret, .strangers_max = 3}, "[::]:0");
  Peer& busy = Join();
  const std::string port = server_->address().substr(server_->address().rfind(':'));
  const auto flood = v1::Fleet::NewStub(
      grpc::CreateChannel("127.0.0.1" + port, grpc::InsecureChannelCredentials()));
  for (int i = 0; i < 10; ++i) Join(*flood);
  RegisterProven(busy, "busy");
  EXPECT_EQ(Next<NodeRegistered>().registration.node_id(), "busy");
}

TEST_F(FleetStreams, SilentOnesEndInTime) {
  Serve({.secret = kSecret, .register_within = absl::Seconds(10)});
  Join();
  RegisterProven(Join(), "honest");
  Next<NodeRegistered>();
  service_->OnTick(absl::Now());
  EXPECT_EQ(service_->streams_refused(), 0);
  service_->OnTick(absl::Now() + absl::Seconds(11));
  const grpc::Status ended = peers_[0].AwaitEnd();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(ended.error_message(), HasSubstr("no registration came within 10s"));
  EXPECT_EQ(service_->streams_refused(), 1);
  // The node's goes on.
  peers_[1].stream->Write(v1::NodeMessage());
  Next<NodeSpoke>();
}

TEST_F(FleetStreams, OnlyARegistrationMayComeFirst) {
  Serve({.secret = ""});
  Peer& peer = Join();
  v1::NodeMessage message;
  message.mutable_load()->set_blocks_total(1 << 30);
  peer.stream->Write(message);
  const grpc::Status refused = peer.AwaitEnd();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("must be a registration"));
  EXPECT_EQ(came_.size(), 0);
}

TEST_F(FleetStreams, ASecondRegistrationEndsTheStream) {
  Serve({.secret = kSecret});
  Peer& peer = Join();
  RegisterProven(peer, "first");
  Next<NodeRegistered>();
  RegisterProven(peer, "second");
  const grpc::Status ended = peer.AwaitEnd();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(ended.error_message(), HasSubstr("node 'second' registered twice on one stream"));
  Next<NodeGone>();
  EXPECT_EQ(came_.size(), 0);
}

// Its node reads nothing, so the end itself waits behind a message that is being written.
TEST_F(FleetStreams, NothingOfAnEndedStreamGoesOn) {
  Serve({.secret = kSecret});
  grpc::ChannelArguments small_window;
  small_window.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub = v1::Fleet::NewStub(grpc::CreateCustomChannel(
      server_->address(), grpc::InsecureChannelCredentials(), small_window));
  Peer& peer = Join(*stub);
  RegisterProven(peer, "silent");
  const NodeKey node = Next<NodeRegistered>().node;
  v1::RouterMessage large;
  large.add_commands()->mutable_abort()->set_reason(std::string(7 << 19, 'x'));
  service_->Send(node, large);
  service_->Disconnect(node, absl::UnavailableError("the test ends it"));
  peer.stream->Write(v1::NodeMessage());
  EXPECT_TRUE(peer.stream->Read(&large));
  EXPECT_THAT(peer.AwaitEnd().error_message(), HasSubstr("the test ends it"));
  Next<NodeGone>();
  EXPECT_EQ(came_.size(), 0);
}

TEST_F(FleetStreams, ALargeFirstMessageIsNotRead) {
  Serve({.secret = kSecret});
  Peer& peer = Join();
  v1::Registration registration = RegistrationOf("large");
  registration.set_cached_blocks(std::string(rpc::kNodeMessageBytesMax, 'x'));
  peer.Register(registration);
  const grpc::Status refused = peer.AwaitEnd();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr(absl::StrCat(rpc::kNodeMessageBytesMax)));
  EXPECT_EQ(came_.size(), 0);
}

TEST_F(FleetStreams, WhatIsNotProvenIsRefused) {
  Serve({.secret = kSecret});
  const auto expect_refused = [&](Peer& peer, const v1::Registration& registration) {
    peer.Register(registration);
    const grpc::Status refused = peer.AwaitEnd();
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_THAT(refused.error_message(),
                AllOf(HasSubstr("node 'evil'"), HasSubstr("fleet-secret-file")));
  };
  v1::Registration registration = RegistrationOf("evil");
  expect_refused(Join(), registration);
  Peer& guesser = Join();
  rpc::ProveJoin("a guess", guesser.challenge, registration);
  expect_refused(guesser, registration);
  Peer& first = Join();
  rpc::ProveJoin(kSecret, first.challenge, registration);
  expect_refused(Join(), registration);  // overheard on another stream
  Peer& changed = Join();
  rpc::ProveJoin(kSecret, changed.challenge, registration);
  registration.set_num_blocks(1 << 30);
  expect_refused(changed, registration);
  EXPECT_EQ(service_->streams_refused(), 4);
  EXPECT_EQ(came_.size(), 0) << "nothing of it went further";
  RegisterProven(first, "honest");
  Next<NodeRegistered>();
}

TEST_F(FleetStreams, TheRouterProvesTheSecretToNodesThatAsk) {
  Serve({.secret = kSecret});
  const auto welcome = [&](Peer& peer, const v1::Registration& registration) {
    peer.Register(registration);
    v1::RouterMessage message;
    message.mutable_welcome()->set_router_id("r");
    service_->Send(Next<NodeRegistered>().node, message);
    EXPECT_TRUE(peer.stream->Read(&message));
    return message.welcome();
  };
  Peer& peer = Join();
  v1::Registration registration = RegistrationOf("asks");
  registration.set_nonce("random");
  rpc::ProveJoin(kSecret, peer.challenge, registration);
  const v1::Welcome proven = welcome(peer, registration);
  EXPECT_OK(rpc::CheckWelcomeProof(kSecret, registration.proof(), proven));
  EXPECT_EQ(rpc::CheckWelcomeProof("a guess", registration.proof(), proven).code(),
            absl::StatusCode::kUnauthenticated);
  // A node of an earlier release draws no nonce, and gets no proof.
  Peer& earlier = Join();
  v1::Registration without = RegistrationOf("earlier");
  rpc::ProveJoin(kSecret, earlier.challenge, without);
  EXPECT_EQ(welcome(earlier, without).proof(), "");
}

}  // namespace
}  // namespace tandem::router
