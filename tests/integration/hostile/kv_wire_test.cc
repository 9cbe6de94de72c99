// Goal: who reads every packet between two KV planes sees blocks and tokens only where
// --kv-encryption is off; who recorded a whole connection and plays it again gets nowhere; and a
// cluster gives the oracle's tokens either way. Packets are read from the loopback device, which
// needs CAP_NET_RAW.
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>

#include <atomic>
#include <set>
#include <thread>

#include "common/runtime/random.h"
#include "common/transfer/sealed_transport.h"
#include "common/transfer/ucx_transport.h"
#include "tandem/v1/kv.pb.h"
#include "tests/integration/hostile/hostile_cluster.h"

namespace tandem::testing {
namespace {

// Records what TCP connections from or to some ports of this machine carry.
class WireTap {
 public:
  static absl::StatusOr<std::unique_ptr<WireTap>> Start(const std::vector<Port>& ports) {
    auto tap = std::unique_ptr<WireTap>(new WireTap);
    for (const Port& port : ports) tap->ports_.insert(port.port);
    // Without link headers: each packet begins with its IP header.
    tap->fd_ = ::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_IP));
    if (tap->fd_ < 0) return absl::PermissionDeniedError("no CAP_NET_RAW");
    const int buffer_bytes = 256 << 20;
    ::setsockopt(tap->fd_, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof buffer_bytes);
    sockaddr_ll address = {};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_IP);
    address.sll_ifindex = static_cast<int>(::if_nametoindex("lo"));
    if (::bind(tap->fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      return absl::UnavailableError("no loopback device");
    }
    tap->thread_ = std::thread([raw = tap.get()] { raw->Run(); });
    return tap;
  }
  ~WireTap() {
    if (thread_.joinable()) Stop();
    if (fd_ >= 0) ::close(fd_);
  }

  // The packets' contents, in the order of their coming.
  const std::vector<std::string>& Stop() {
    stopping_ = true;
    thread_.join();
    return packets_;
  }

 private:
  void Run() {
    std::string packet(128 << 10, '\0');
    // What had come when Stop was called is still read; other requests' packets never end.
    absl::Time end = absl::InfiniteFuture();
    while (absl::Now() < end) {
      if (stopping_) end = std::min(end, absl::Now() + absl::Milliseconds(300));
      pollfd polled = {.fd = fd_, .events = POLLIN, .revents = 0};
      if (::poll(&polled, 1, 50) <= 0) {
        if (stopping_) return;
        continue;
      }
      const ssize_t bytes = ::recv(fd_, packet.data(), packet.size(), MSG_DONTWAIT);
      if (bytes > 0) Keep(absl::string_view(packet).substr(0, static_cast<size_t>(bytes)));
    }
  }
  void Keep(absl::string_view packet) {
    if (packet.size() < sizeof(iphdr)) return;
    iphdr ip;
    std::memcpy(&ip, packet.data(), sizeof ip);
    packet.remove_prefix(std::min(packet.size(), size_t{ip.ihl} * 4));
    if (ip.protocol != IPPROTO_TCP || packet.size() < sizeof(tcphdr)) return;
    tcphdr tcp;
    std::memcpy(&tcp, packet.data(), sizeof tcp);
    if (ports_.count(ntohs(tcp.source)) + ports_.count(ntohs(tcp.dest)) == 0) return;
    packet.remove_prefix(std::min(packet.size(), size_t{tcp.doff} * 4));
    if (!packet.empty()) packets_.emplace_back(packet);
  }

  std::set<uint16_t> ports_;
  int fd_ = -1;
  std::atomic<bool> stopping_{false};
  std::vector<std::string> packets_;  // Run's until Stop has joined it
  std::thread thread_;
};

// How many of `needles` lie in a packet, in whole.
int64_t Found(const std::vector<std::string>& packets, const std::vector<std::string>& needles) {
  int64_t found = 0;
  for (const std::string& needle : needles) {
    for (const std::string& packet : packets) {
      if (packet.find(needle) == std::string::npos) continue;
      ++found;
      break;
    }
  }
  return found;
}

v1::GenerateRequest Secret() {
  v1::GenerateRequest request;
  request.set_request_id("secret");
  std::mt19937_64 random(20261125);
  for (int i = 0; i < 600; ++i) request.mutable_tokens()->add_ids(static_cast<int>(random() % 256));
  request.mutable_stop()->set_max_tokens(20);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_seed(7);
  request.set_return_token_ids(true);
  return request;
}

// The KV of the prompt's tokens, for each token and layer as the hash engine stores it.
std::vector<std::string> KvOf(const v1::GenerateRequest& request) {
  engine::HashEngineOptions options;
  auto engine = *engine::NewHashEngine(options);
  const std::vector<TokenId> tokens(request.tokens().ids().begin(), request.tokens().ids().end());
  const auto num_blocks = static_cast<int32_t>(tokens.size() / options.block_tokens + 1);
  EXPECT_OK(engine->AllocateKv(num_blocks));
  std::vector<BlockId> blocks;
  for (int32_t i = 0; i < num_blocks; ++i) blocks.push_back(BlockId(i));
  const engine::SequenceSlice slice = {.tokens = tokens,
                                       .num_computed = 0,
                                       .num_new = static_cast<int64_t>(tokens.size()),
                                       .blocks = blocks,
                                       .prompt_tokens = static_cast<int64_t>(tokens.size())};
  EXPECT_OK(engine->Step({slice}, [](int) {}).status());
  std::vector<std::string> kv;
  const auto bytes = static_cast<size_t>(options.kv_bytes_per_token_layer);
  for (int layer = 0; layer < options.num_layers; ++layer) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto block =
          engine->arena().Block(layer, blocks[i / static_cast<size_t>(options.block_tokens)]);
      const size_t at = i % static_cast<size_t>(options.block_tokens) * bytes;
      kv.emplace_back(reinterpret_cast<const char*>(block.data()) + at, bytes);
    }
  }
  return kv;
}

// How the first token can look in the frame that ends the transfer.
std::vector<std::string> FirstTokenOf(const v1::GenerateRequest& request) {
  std::vector<std::string> frames;
  for (uint32_t data_frames = 1; data_frames <= 64; ++data_frames) {
    v1::KvFin fin;
    fin.set_data_frames(data_frames);
    fin.mutable_first_token()->set_token_id(Oracle(request)[0]);
    fin.mutable_tokens()->set_computed(request.tokens().ids_size());
    frames.push_back(fin.SerializeAsString());
  }
  return frames;
}

class KvWire : public HostileCluster, public ::testing::WithParamInterface<bool> {
 protected:
  bool encrypts() const { return GetParam(); }
  std::vector<std::string> NodeFlags() const override {
    return {encrypts() ? "--kv-encryption=true" : "--kv-encryption=false"};
  }
};

INSTANTIATE_TEST_SUITE_P(Encryption, KvWire, ::testing::Bool());

TEST_P(KvWire, AnEavesdropperSeesBlocksAndTokensOnlyWithoutEncryption) {
  std::vector<Port> ports;
  for (const char* node : {"prefill-0", "decode-0", "decode-1"}) {
    for (const Port& port : KvPorts(node)) ports.push_back(port);
  }
  auto tap = WireTap::Start(ports);
  if (absl::IsPermissionDenied(tap.status())) GTEST_SKIP() << tap.status().message();
  ASSERT_OK(tap.status());
  const v1::GenerateRequest request = Secret();
  const Answer answer = Collect(*client_, request);
  EXPECT_OK(answer.status);
  EXPECT_EQ(answer.tokens, Oracle(request));
  const std::vector<std::string>& packets = (*tap)->Stop();
  size_t bytes = 0;
  for (const std::string& packet : packets) bytes += packet.size();
  const std::vector<std::string> kv = KvOf(request), tokens = FirstTokenOf(request);
  const int64_t kv_found = Found(packets, kv), tokens_found = Found(packets, tokens);
  std::printf("%zu packets, %zu bytes: %ld of %zu pieces of KV, first token %s\n", packets.size(),
              bytes, static_cast<long>(kv_found), kv.size(),
              tokens_found > 0 ? "seen" : "not seen");
  // The prompt's blocks did travel past the eavesdropper.
  EXPECT_GT(bytes, kv.size() * kv[0].size());
  if (encrypts()) {
    EXPECT_EQ(kv_found, 0);
    EXPECT_EQ(tokens_found, 0);
  } else {
    EXPECT_GT(kv_found, static_cast<int64_t>(kv.size() / 2));
    EXPECT_EQ(tokens_found, 1);
  }
}

// Records what a sealed transport gives to the one below.
class Recorder final : public transfer::KvTransport {
 public:
  explicit Recorder(std::unique_ptr<transfer::KvTransport> other) : other_(std::move(other)) {}

  void SetListener(Listener* listener) override { other_->SetListener(listener); }
  const std::string& address() const override { return other_->address(); }
  absl::StatusOr<transfer::PeerId> Connect(const transfer::PeerAddress& peer) override {
    return other_->Connect(peer);
  }
  void Disconnect(transfer::PeerId peer) override { other_->Disconnect(peer); }
  void Send(transfer::PeerId peer, const v1::KvFrame& frame, transfer::GatherList payload,
            absl::AnyInvocable<void(const absl::Status&)> done) override {
    recorded.push_back(frame);
    other_->Send(peer, frame, std::move(payload), std::move(done));
  }
  std::string TransportName(transfer::PeerId peer) const override {
    return other_->TransportName(peer);
  }
  bool Progress() override { return other_->Progress(); }
  void Wait(absl::Duration timeout) override { other_->Wait(timeout); }
  void Wake() override { other_->Wake(); }

  std::vector<v1::KvFrame> recorded;

 private:
  const std::unique_ptr<transfer::KvTransport> other_;
};

absl::StatusOr<std::unique_ptr<Recorder>> NewRecorder() {
  auto ucx = transfer::NewUcxTransport({"tcp", "elsewhere", kFleetSecret});
  if (!ucx.ok()) return ucx.status();
  return std::make_unique<Recorder>(*std::move(ucx));
}

// Sends `frames`, and returns once all have left.
void SendAll(transfer::KvTransport& transport, const v1::Registration& node,
             const std::vector<v1::KvFrame>& frames) {
  const auto peer = transport.Connect(
      {NodeId(node.node_id()), Incarnation(node.incarnation()), node.transfer_address(), ""});
  ASSERT_OK(peer.status());
  int in_flight = 0;
  for (const v1::KvFrame& frame : frames) {
    ++in_flight;
    transport.Send(*peer, frame, {}, [&in_flight](const absl::Status&) { --in_flight; });
  }
  const absl::Time give_up = absl::Now() + absl::Seconds(30);
  while (in_flight > 0 && absl::Now() < give_up) transport.Progress();
  EXPECT_EQ(in_flight, 0);
}

// Takes nothing and answers nothing.
struct Silent final : transfer::KvTransport::Listener {
  std::optional<transfer::ScatterList> OnFrame(transfer::PeerId, const v1::KvFrame&, size_t,
                                               uint64_t) override {
    return std::nullopt;
  }
  void OnPayload(uint64_t, const absl::Status&, const transfer::ReceiveInterval&) override {}
  void OnPeerLost(transfer::PeerId, const absl::Status&) override {}
};

// A process of the fleet connects and sends frames that the node counts. Then its whole connection
// is played again, from another one: the handshake is answered and never confirmed, no frame is
// authentic, and the connection ends.
TEST_P(KvWire, ARecordedConnectionIsOfNoUse) {
  const v1::Registration node = eavesdropper_.Await("decode-0");
  const auto rejected = [](const v1::NodeCounters& c) { return c.kv_frames_rejected(); };
  const auto dropped = [](const v1::NodeCounters& c) { return c.kv_messages_dropped(); };
  const auto refused = [](const v1::NodeCounters& c) { return c.kv_connections_refused(); };
  const int64_t rejected_before = AwaitCounter("decode-0", 0, rejected);
  const int64_t dropped_before = AwaitCounter("decode-0", 0, dropped);
  const int64_t refused_before = AwaitCounter("decode-0", 0, refused);
  constexpr int kFrames = 20;
  std::vector<v1::KvFrame> recorded;
  Silent silent;
  {
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<Recorder> recorder, NewRecorder());
    Recorder& tape = *recorder;
    const auto sealed = transfer::NewSealedTransport(
        {.fleet_secret = kFleetSecret, .encrypts = encrypts()}, std::move(recorder));
    sealed->SetListener(&silent);
    v1::KvFrame frame;  // without the tag that the KV transfer asks for as well
    frame.set_lease_id(1);
    SendAll(*sealed, node, std::vector<v1::KvFrame>(kFrames, frame));
    recorded = tape.recorded;
    AwaitCounter("decode-0", rejected_before + kFrames, rejected);
    sealed->SetListener(nullptr);
  }
  ASSERT_GT(recorded.size(), static_cast<size_t>(kFrames));
  ASSERT_TRUE(recorded[0].has_handshake());
  ASSERT_OK_AND_ASSIGN(const auto replayer, NewRecorder());
  replayer->SetListener(&silent);
  SendAll(*replayer, node, recorded);
  EXPECT_GE(AwaitCounter("decode-0", dropped_before + kFrames, dropped), dropped_before + kFrames);
  EXPECT_GE(AwaitCounter("decode-0", refused_before + 1, refused), refused_before + 1);
  EXPECT_EQ(AwaitCounter("decode-0", 0, rejected), rejected_before + kFrames)
      << processes_["decode-0"].program->log();
  replayer->SetListener(nullptr);
}

}  // namespace
}  // namespace tandem::testing
