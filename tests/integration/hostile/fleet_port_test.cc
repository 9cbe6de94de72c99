// Goal: at the port where nodes join, who does not prove the fleet's secret becomes no node and
// keeps none out, however many come; a node that proves it and says what cannot be is refused by
// name; nodes obey no router that does not prove it; the fleet goes on.
#include <grpcpp/generic/generic_stub.h>

#include <deque>

#include "common/rpc/join_proof.h"
#include "tests/integration/hostile/hostile_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

struct Stream {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::NodeMessage, v1::RouterMessage>> stream;
};

class HostileFleetPort : public HostileCluster {
 protected:
  void SetUp() override {
    HostileCluster::SetUp();
    channel_ = grpc::CreateChannel(fleet_, grpc::InsecureChannelCredentials());
    stub_ = v1::Fleet::NewStub(channel_);
  }
  Stream& Join() {
    Stream& joined = streams_.emplace_back();
    joined.context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    joined.stream = stub_->Join(&joined.context);
    return joined;
  }
  // Registers as a node of the fleet and returns what the router says to it.
  grpc::Status JoinProven(v1::Registration registration) {
    Stream& joined = Join();
    joined.stream->WaitForInitialMetadata();
    const auto& metadata = joined.context.GetServerInitialMetadata();
    const auto challenge = metadata.find(rpc::kChallengeKey);
    EXPECT_NE(challenge, metadata.end());
    if (challenge == metadata.end()) return grpc::Status::CANCELLED;
    rpc::ProveJoin(kFleetSecret, {challenge->second.data(), challenge->second.size()},
                   registration);
    v1::NodeMessage message;
    *message.mutable_registration() = registration;
    joined.stream->Write(message);
    v1::RouterMessage answer;
    EXPECT_FALSE(joined.stream->Read(&answer)) << "welcome: " << registration.DebugString();
    return joined.stream->Finish();
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Fleet::Stub> stub_;
  std::deque<Stream> streams_;
};

TEST_F(HostileFleetPort, AFloodOfStrangersKeepsNoNodeOut) {
  const int64_t before = StreamsRefused();
  // Silent ones stay open while others come, speak and go; a node starts again among them.
  for (int i = 0; i < 200; ++i) Join();
  processes_["decode-1"].program->Signal(SIGKILL);
  processes_["decode-1"].program->AwaitEnd();
  v1::NodeMessage overheard;
  *overheard.mutable_registration() = eavesdropper_.Await("decode-0");
  v1::NodeMessage no_registration;
  no_registration.mutable_load()->set_blocks_free(1 << 30);
  for (int i = 0; i < 200; ++i) {
    Stream& speaker = Join();
    speaker.stream->Write(i % 2 == 0 ? overheard : no_registration);
    if (i == 100) StartNode("decode", "decode-1");
  }
  load_.AwaitAnswers(10);
  for (Stream& stream : streams_) stream.context.TryCancel();
  for (Stream& stream : streams_) stream.stream->Finish();
  EXPECT_OK(AwaitStatus(*client_, absl::Seconds(20), [&](const v1::GetStatusResponse& status) {
    const int64_t refused = status.router().fleet_streams_refused() - before;
    return refused == 400 ? "" : absl::StrCat(refused, " of 400 refused");
  }));
  ASSERT_OK_AND_ASSIGN(const auto status, client_->GetStatus(absl::Seconds(10)));
  int ready = 0;
  for (const v1::NodeStatus& node : status.nodes()) ready += node.state() == "ready" ? 1 : 0;
  EXPECT_EQ(ready, 3) << status.DebugString();
  Process& restarted = processes_["decode-1"];
  restarted.files = OpenFiles(restarted.program->pid());
  restarted.bytes = ResidentBytes(restarted.program->pid());
}

TEST_F(HostileFleetPort, NodesObeyNoRouterWithoutTheSecret) {
  for (const char* node : {"prefill-0", "decode-0", "decode-1"}) {
    eavesdropper_.Await(node);
    EXPECT_THAT(processes_[node].program->AwaitLine("no router of this fleet"),
                ::testing::AllOf(HasSubstr("address=" + ear_->address()),
                                 HasSubstr("does not prove this fleet")));
  }
  load_.AwaitAnswers(20);
  EXPECT_EQ(eavesdropper_.obeyed(), 0);
}

TEST_F(HostileFleetPort, MessagesTooLargeOrNoneAtAll) {
  const int64_t before = StreamsRefused();
  grpc::GenericStub stub(channel_);
  const auto send_raw = [&](const std::string& bytes) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
    grpc::CompletionQueue queue;
    const auto stream = stub.PrepareCall(&context, "/tandem.v1.Fleet/Join", &queue);
    void* tag = nullptr;
    bool ok = false;
    stream->StartCall(nullptr);
    queue.Next(&tag, &ok);
    const grpc::Slice slice(bytes);
    stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    queue.Next(&tag, &ok);
    grpc::ByteBuffer answer;
    stream->Read(&answer, nullptr);
    queue.Next(&tag, &ok);
    EXPECT_FALSE(ok) << "answered " << bytes.size() << " bytes";
    grpc::Status status;
    stream->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    EXPECT_FALSE(status.ok());
  };
  send_raw(std::string((64 << 20) + 1, '\x0a'));
  send_raw(std::string("\x12\x7f", 2) + "cut short");
  send_raw("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff");
  send_raw("");
  EXPECT_OK(AwaitStatus(*client_, absl::Seconds(20), [&](const v1::GetStatusResponse& status) {
    const int64_t refused = status.router().fleet_streams_refused() - before;
    return refused == 4 ? "" : absl::StrCat(refused, " of 4 refused");
  }));
}

TEST_F(HostileFleetPort, ANodeThatSaysWhatCannotBeIsRefused) {
  const v1::Registration honest = eavesdropper_.Await("decode-0");
  const auto expect_refused = [&](const std::function<void(v1::Registration&)>& spoil,
                                  grpc::StatusCode code, const std::string& named) {
    v1::Registration registration = honest;
    registration.set_node_id("confused");
    spoil(registration);
    const grpc::Status status = JoinProven(registration);
    EXPECT_EQ(status.error_code(), code) << named;
    EXPECT_THAT(status.error_message(), HasSubstr(named));
  };
  using R = v1::Registration;
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  const auto differs = grpc::StatusCode::FAILED_PRECONDITION;
  expect_refused([](R& r) { r.set_node_id(""); }, invalid,
                 "node_id: expected 1 to 128 bytes, not 0");
  expect_refused([](R& r) { r.set_node_id(std::string(100'000, 'n')); }, invalid, "node_id");
  expect_refused([](R& r) { r.set_role(static_cast<v1::NodeRole>(99)); }, invalid, "role is 99");
  expect_refused([](R& r) { r.set_num_blocks(-1); }, invalid, "num_blocks is -1");
  expect_refused([](R& r) { r.set_num_blocks(int64_t{1} << 40); }, invalid, "num_blocks");
  expect_refused([](R& r) { r.set_block_tokens(1 << 30); }, invalid, "block_tokens");
  expect_refused([](R& r) { r.set_context_tokens(0); }, invalid, "context_tokens is 0");
  expect_refused([](R& r) { r.set_cached_blocks("no hashes"); }, invalid, "got 9 in all");
  expect_refused([](R& r) { r.set_model_fingerprint("another"); }, differs, "fingerprint");
  expect_refused([](R& r) { r.set_numerics_id("another"); }, differs, "numerics id");
  expect_refused([](R& r) { r.set_block_names("sha256-1:0011"); }, differs, "names blocks by");
  expect_refused([](R& r) { r.clear_block_names(); }, differs, "an earlier release's hash");
  // The name of a node that is there, by an earlier process of it.
  expect_refused(
      [&](R& r) {
        r.set_node_id("decode-0");
        r.set_incarnation(honest.incarnation() - 1);
      },
      differs, "incarnation");
}

}  // namespace
}  // namespace tandem::testing
