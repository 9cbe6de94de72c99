// Goal: peers that open streams and say nothing take no more of a router than the bound; when one
// leaves, the next is taken.
#include <grpcpp/grpcpp.h>

#include <deque>

#include "absl/strings/str_cat.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/server/fleet_service.h"
#include "tandem/v1/fleet.grpc.pb.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

struct Joined {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::NodeMessage, v1::RouterMessage>> stream;
};

TEST(FleetStreams, AreBoundedEvenWhenNobodyRegisters) {
  Inbox inbox(100);
  FleetService service(inbox, 2);
  ASSERT_OK_AND_ASSIGN(const auto server, rpc::Server::Start("127.0.0.1:0", {&service}));
  const auto stub = v1::Fleet::NewStub(
      grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
  std::deque<Joined> peers;
  const auto join = [&]() -> Joined& {
    Joined& peer = peers.emplace_back();
    peer.stream = stub->Join(&peer.context);
    return peer;
  };
  // What a stream says reaches the inbox once it is taken.
  const auto speak = [&](Joined& peer) {
    ASSERT_TRUE(peer.stream->Write(v1::NodeMessage()));
    ASSERT_TRUE(std::holds_alternative<NodeSpoke>(*inbox.Pop(absl::Seconds(60))));
  };
  speak(join());
  speak(join());
  v1::RouterMessage message;
  Joined& third = join();
  EXPECT_FALSE(third.stream->Read(&message));
  const grpc::Status refused = third.stream->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("2 nodes' streams are open, the limit is 2"));

  peers[0].context.TryCancel();
  ASSERT_TRUE(std::holds_alternative<NodeGone>(*inbox.Pop(absl::Seconds(60))));
  peers[0].stream->Finish();
  speak(join());
  for (Joined& peer : peers) peer.context.TryCancel();
  service.DisconnectAll(absl::UnavailableError("the test ends"));
  server->Shutdown(absl::Seconds(5));
}

}  // namespace
}  // namespace tandem::router
