// Goal: on the KV plane's own ports, who does not hold the fleet's secret reaches neither UCX nor
// this process; who does, and sends what no honest node would, costs epochs at most. Both are
// counted, and every answer is the oracle's.
#include <random>

#include "common/base/keyed_tag.h"
#include "common/transfer/frame_auth.h"
#include "common/transfer/sealed_transport.h"
#include "common/transfer/ucx_address.h"
#include "common/transfer/ucx_socket_guard.h"
#include "common/transfer/ucx_transport.h"
#include "common/transfer/ucx_worker.h"
#include "tests/integration/hostile/hostile_cluster.h"
#include "tests/testing/hostile_frames.h"

namespace tandem::testing {
namespace {

using transfer::UcxAddress;
using transfer::UcxContext;
using transfer::UcxEndpoint;
using transfer::UcxSocketGuard;
using transfer::UcxWorker;

constexpr unsigned kMessageId = 3;  // of all that transports send each other
constexpr char kHello = 1;

// A UCX endpoint of an attacker, who sends active messages as they please.
class UcxAttacker {
 public:
  explicit UcxAttacker(const std::string& secret) : guard_(secret) {
    const UcxSocketGuard::Scope scope(guard_);
    context_ = *UcxContext::Create("tcp");
    worker_ = *UcxWorker::Create(*context_);
  }
  ~UcxAttacker() {
    const UcxSocketGuard::Scope scope(guard_);
    endpoint_.StartClose();
    const absl::Time give_up = absl::Now() + absl::Seconds(5);
    while (!endpoint_.Closed() && absl::Now() < give_up) ucp_worker_progress(worker_->handle());
  }

  void Connect(const std::string& worker_address) {
    const UcxSocketGuard::Scope scope(guard_);
    broken_ = !endpoint_.Open(*worker_, worker_address, &UcxAttacker::OnError, this).ok();
  }
  // Returns once UCX has let go of it, sent or not.
  void Send(const std::string& header, const std::string& payload) {
    const UcxSocketGuard::Scope scope(guard_);
    if (broken_) return;
    ucp_request_param_t param = {};
    const ucs_status_ptr_t sent =
        ucp_am_send_nbx(endpoint_.handle(), kMessageId, header.data(), header.size(),
                        payload.data(), payload.size(), &param);
    if (!UCS_PTR_IS_PTR(sent)) return;
    const absl::Time give_up = absl::Now() + absl::Seconds(10);
    while (ucp_request_check_status(sent) == UCS_INPROGRESS && !broken_ && absl::Now() < give_up) {
      ucp_worker_progress(worker_->handle());
    }
    ucp_request_free(sent);
  }
  bool AwaitBroken(absl::Duration timeout) {
    const UcxSocketGuard::Scope scope(guard_);
    const absl::Time give_up = absl::Now() + timeout;
    while (!broken_ && absl::Now() < give_up) ucp_worker_progress(worker_->handle());
    return broken_;
  }

 private:
  static void OnError(void* self, ucp_ep_h, ucs_status_t) {
    static_cast<UcxAttacker*>(self)->broken_ = true;
  }

  const UcxSocketGuard guard_;
  std::unique_ptr<UcxContext> context_;
  std::unique_ptr<UcxWorker> worker_;
  UcxEndpoint endpoint_;
  bool broken_ = false;
};

std::string WorkerAddressOf(const v1::Registration& node) {
  const auto address = UcxAddress::Parse(node.transfer_address(), kFleetSecret);
  EXPECT_OK(address.status());
  return address.ok() ? address->worker_address : "";
}

class HostileKvPlane : public HostileCluster {
 protected:
  void SetUp() override {
    HostileCluster::SetUp();
    seed_ = std::random_device()();
    std::printf("attacker's seed %lu\n", static_cast<unsigned long>(seed_));
  }
  int64_t AwaitRefused(const std::string& node, int64_t goal) {
    return AwaitCounter(node, goal,
                        [](const v1::NodeCounters& c) { return c.kv_connections_refused(); });
  }

  uint64_t seed_ = 0;
};

// Thirteen bytes behind UCX's greeting name memory of the process that reads them. Here they are
// sent by those who prove nothing, something made up, or what was proven on another connection.
TEST_F(HostileKvPlane, NoByteOfAStrangerReachesUcx) {
  std::mt19937_64 random(seed_);
  const std::string write_request = [] {
    std::string bytes = "\x78\x56\x34\x12\xBE\xBA\xFE\xCA";
    bytes += std::string("\x21\x14\0\0\0", 5);
    bytes += std::string("AAAAAAAA", 8) + std::string("\0\x10\0\0\0\0\0\0", 8) +
             std::string("\1\0\0\0", 4) + std::string(4096, 'A');
    return bytes;
  }();
  const std::string nonce = "sixteen byte now";
  const std::string proofs[] = {
      "",
      std::string(48, '\0'),
      nonce + KeyedTag("a guess", "kv socket", nonce),
      nonce + KeyedTag(kFleetSecret, "kv socket", nonce),  // of no connection
      nonce + KeyedTag(kFleetSecret, "kv socket", nonce + std::string(12, 'x')),
      std::string(47, 'x'),
  };
  int64_t connections = 0;
  for (const char* node : {"prefill-0", "decode-0"}) {
    int64_t here = 0;
    ASSERT_FALSE(KvPorts(node).empty());
    for (const Port& port : KvPorts(node)) {
      for (const std::string& proof : proofs) {
        Wire wire(port);
        ASSERT_TRUE(wire.connected());
        wire.Write(proof + write_request);
        EXPECT_TRUE(wire.AwaitEnd(absl::Seconds(20))) << "proof of " << proof.size() << " bytes";
        ++here;
      }
    }
    EXPECT_GE(AwaitRefused(node, here), here);
    connections += here;
  }
  std::printf("%ld connections refused\n", static_cast<long>(connections));
}

TEST_F(HostileKvPlane, UcxItselfIsRefusedWithoutTheSecret) {
  const v1::Registration node = eavesdropper_.Await("decode-0");
  for (const char* secret : {"", "a guess"}) {
    EXPECT_THAT(UcxAddress::Parse(node.transfer_address(), secret),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::HasSubstr("another fleet-secret-file")));
    UcxAttacker attacker(secret);
    attacker.Connect(WorkerAddressOf(node));  // that was overheard before it was sealed
    attacker.Send(std::string(1, kHello) + std::string(64, 'h'), std::string(100'000, 'p'));
    EXPECT_TRUE(attacker.AwaitBroken(absl::Seconds(20)));
  }
  AwaitRefused("decode-0", 2);
}

// A node of the fleet that has gone mad at the level below frames.
TEST_F(HostileKvPlane, MessagesOfNoPeerAreDropped) {
  const v1::Registration node = eavesdropper_.Await("decode-0");
  std::mt19937_64 random(seed_);
  UcxAttacker attacker(kFleetSecret);
  attacker.Connect(WorkerAddressOf(node));
  constexpr int kMessages = 400;
  for (int i = 0; i < kMessages; ++i) {
    std::string header(random() % 200, '\0');
    for (char& byte : header) byte = static_cast<char>(random());
    if (!header.empty()) header[0] = static_cast<char>(random() % 8);
    attacker.Send(header, std::string(random() % 8 == 0 ? 300'000 : random() % 100, 'p'));
  }
  AwaitCounter("decode-0", kMessages,
               [](const v1::NodeCounters& c) { return c.kv_messages_dropped(); });
}

// Counts what it is told; takes nothing.
class Deaf final : public transfer::KvTransport::Listener {
 public:
  explicit Deaf(HostileFrames& frames) : frames_(frames) {}
  std::optional<transfer::ScatterList> OnFrame(transfer::PeerId, const v1::KvFrame& frame, size_t,
                                               uint64_t) override {
    frames_.Heard(frame);
    return std::nullopt;
  }
  void OnPayload(uint64_t, const absl::Status&, const transfer::ReceiveInterval&) override {}
  void OnPeerLost(transfer::PeerId, const absl::Status&) override {}

 private:
  HostileFrames& frames_;
};

absl::StatusOr<std::unique_ptr<transfer::KvTransport>> NewSealedUcx(const std::string& secret) {
  auto ucx = transfer::NewUcxTransport({"tcp", "elsewhere", secret});
  if (!ucx.ok()) return ucx;
  return transfer::NewSealedTransport({.fleet_secret = secret}, *std::move(ucx));
}

TEST_F(HostileKvPlane, FramesOfAConfusedNodeCostEpochsAtMost) {
  const auto random = NewSeededRandom(seed_);
  const std::string payload(1 << 20, 'p');
  constexpr int64_t kLayers = 4;
  const v1::Registration first = eavesdropper_.Await("decode-0");
  HostileFrames frames(*random, /*knows=*/true,
                       static_cast<uint64_t>(first.kv_bytes_per_block() / kLayers), payload.size());
  Deaf deaf(frames);
  ASSERT_OK_AND_ASSIGN(const auto transport, NewSealedUcx(kFleetSecret));
  transport->SetListener(&deaf);
  const transfer::FrameAuth auth(kFleetSecret);
  for (int burst = 0; burst < 10; ++burst) {
    int in_flight = 0;
    for (const char* id : {"prefill-0", "decode-0", "decode-1"}) {
      const v1::Registration node = eavesdropper_.Await(id);
      ASSERT_OK_AND_ASSIGN(const auto peer,
                           transport->Connect({NodeId(id), Incarnation(node.incarnation()),
                                               node.transfer_address(), "elsewhere"}));
      for (int i = 0; i < 60; ++i) {
        v1::KvFrame frame = frames.Next(Incarnation(node.incarnation()), random->Below(400));
        const size_t bytes = frames.PayloadOf(frame);
        auth.Sign(frame);
        ++in_flight;
        transport->Send(
            peer, frame,
            {absl::MakeConstSpan(reinterpret_cast<const std::byte*>(payload.data()), bytes)},
            [&in_flight](const absl::Status&) { --in_flight; });
      }
    }
    const absl::Time give_up = absl::Now() + absl::Seconds(30);
    while (in_flight > 0 && absl::Now() < give_up) transport->Progress();
    ASSERT_EQ(in_flight, 0);
    load_.AwaitAnswers(2);
  }
  for (const char* node : {"prefill-0", "decode-0", "decode-1"}) {
    AwaitCounter(node, 50, [](const v1::NodeCounters& c) {
      return c.kv_frames_rejected() + c.kv_frames_untimely();
    });
  }
  transport->SetListener(nullptr);
}

}  // namespace
}  // namespace tandem::testing
