// Goal: payloads travel through a mapped arena where both sides agree, and through the other
// transport where not; a peer that maps and never answers, offers too much, names bytes outside its
// arena or answers nonsense costs its own mapping at most; and every send completes exactly once.
// The other transport is real UCX within one process.
#include "common/transfer/mapped_transport.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "common/transfer/arena_descriptor.h"
#include "common/transfer/frame_auth.h"
#include "common/transfer/local_socket.h"
#include "common/transfer/ucx_transport.h"
#include "tests/testing/status_matchers.h"

namespace tandem::transfer {
namespace {

constexpr int64_t kCellBytes = 64 << 10;
constexpr size_t kCell = static_cast<size_t>(kCellBytes);
constexpr char kSecret[] = "fleet";
constexpr absl::Duration kPatience = absl::Seconds(20);

// One end of a connection: what it was told, and a place for payloads.
struct Side : KvTransport::Listener {
  explicit Side(bool with_mapping, const MappedTransportOptions& options = {},
                kv::ArenaMemory memory = kv::ArenaMemory::kShareable) {
    arena = *kv::BlockArena::Create(
        {.num_layers = 1, .block_tokens = 16, .layer_block_bytes = kCellBytes}, 8, memory);
    transport = *NewUcxTransport({.transports = "auto", .host = "host", .fleet_secret = kSecret});
    if (with_mapping) {
      MappedTransportOptions mapped = options;
      mapped.fleet_secret = kSecret;
      transport = NewMappedTransport(mapped, *arena, std::move(transport));
    }
    transport->SetListener(this);
  }
  ~Side() override { transport->SetListener(nullptr); }

  std::optional<ScatterList> OnFrame(PeerId from, const v1::KvFrame& frame, size_t payload_bytes,
                                     uint64_t) override {
    peer = from;
    frames.push_back(frame);
    if (payload_bytes == 0 || !takes) return std::nullopt;
    landed.assign(payload_bytes, std::byte{0});
    return ScatterList{absl::MakeSpan(landed)};
  }
  void OnPayload(uint64_t, const absl::Status& status, const ReceiveInterval& interval) override {
    statuses.push_back(status);
    last = interval;
  }
  void OnPeerLost(PeerId, const absl::Status&) override { lost = true; }

  // The last frame about a mapping of `kind`, if one came.
  std::optional<v1::KvMapping> Mapping(v1::KvMapping::Kind kind) const {
    std::optional<v1::KvMapping> found;
    for (const v1::KvFrame& frame : frames) {
      if (frame.has_mapping() && frame.mapping().kind() == kind) found = frame.mapping();
    }
    return found;
  }
  void SendMapping(v1::KvMapping mapping, const std::string& secret = kSecret) {
    v1::KvFrame frame;
    *frame.mutable_mapping() = std::move(mapping);
    FrameAuth(secret).Sign(frame);
    transport->Send(peer, frame, {}, nullptr);
  }

  std::unique_ptr<kv::BlockArena> arena;
  std::unique_ptr<KvTransport> transport;
  PeerId peer;
  bool takes = true, lost = false;
  std::vector<v1::KvFrame> frames;
  std::vector<std::byte> landed;
  std::vector<absl::Status> statuses;
  ReceiveInterval last;
};

template <typename Condition>
bool Pump(Side& a, Side& b, Condition condition) {
  const absl::Time give_up = absl::Now() + kPatience;
  while (!condition() && absl::Now() < give_up) {
    a.transport->Progress();
    b.transport->Progress();
  }
  return condition();
}

class MappedTransportTest : public ::testing::Test {
 protected:
  // `owner` sends to `reader`; each has a mapping layer, or is played by the test.
  void Connect(bool owner_maps, bool reader_maps, const MappedTransportOptions& options = {}) {
    owner_ = std::make_unique<Side>(owner_maps, options);
    reader_ = std::make_unique<Side>(reader_maps, options);
    owner_->peer = *owner_->transport->Connect(
        {NodeId("reader"), Incarnation(1), reader_->transport->address(), "host"});
    // Until a frame has gone each way both sides know each other.
    owner_->transport->Send(owner_->peer, v1::KvFrame(), {}, nullptr);
    ASSERT_TRUE(Pump(*owner_, *reader_, [&] { return !reader_->frames.empty(); }));
    ASSERT_EQ(owner_->transport->TransportName(owner_->peer), "shm");
  }
  // Sends `blocks` blocks from the arena's first; done_ counts.
  void SendBlocks(int blocks) {
    GatherList payload;
    for (int i = 0; i < blocks; ++i) {
      const absl::Span<std::byte> block = owner_->arena->Block(0, BlockId(2 * i));
      std::memset(block.data(), 10 + i, block.size());
      payload.push_back(block);
    }
    v1::KvFrame frame;
    frame.set_lease_id(++lease_);
    owner_->transport->Send(owner_->peer, frame, payload, [this](const absl::Status& status) {
      ++done_;
      done_status_ = status;
    });
  }
  // Sends until a payload goes through the mapping.
  void OpenMapping() {
    ASSERT_TRUE(Pump(*owner_, *reader_, [&] {
      if (done_ == static_cast<int>(lease_)) SendBlocks(1);
      return owner_->transport->TransportName(owner_->peer) == "shm+mapped";
    }));
    ASSERT_TRUE(Pump(*owner_, *reader_, [&] { return done_ == static_cast<int>(lease_); }));
  }

  std::unique_ptr<Side> owner_, reader_;
  uint64_t lease_ = 0;
  int done_ = 0;
  absl::Status done_status_;
};

TEST_F(MappedTransportTest, MovesPayloadsThroughTheMapping) {
  Connect(true, true);
  OpenMapping();
  const int done = done_;
  reader_->statuses.clear();
  SendBlocks(3);
  ASSERT_TRUE(Pump(*owner_, *reader_, [&] { return done_ > done; }));
  EXPECT_OK(done_status_);
  ASSERT_EQ(reader_->landed.size(), 3 * kCell);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(reader_->landed[i * kCell], static_cast<std::byte>(10 + i));
    EXPECT_EQ(reader_->landed[(i + 1) * kCell - 1], static_cast<std::byte>(10 + i));
  }
  ASSERT_TRUE(reader_->last.checksum.has_value());
  EXPECT_EQ(*reader_->last.checksum, PayloadChecksum({absl::MakeConstSpan(reader_->landed)}));
  EXPECT_EQ(reader_->frames.back().lease_id(), lease_);
  EXPECT_FALSE(reader_->frames.back().has_via_mapping());
  EXPECT_THAT(reader_->statuses, ::testing::ElementsAre(absl::OkStatus()));
}

TEST_F(MappedTransportTest, UnwantedPayloadsAreTakenToo) {
  Connect(true, true);
  OpenMapping();
  reader_->takes = false;
  reader_->statuses.clear();
  for (int i = 0; i < 9; ++i) SendBlocks(1);
  EXPECT_TRUE(Pump(*owner_, *reader_, [&] { return done_ == static_cast<int>(lease_); }));
  EXPECT_THAT(reader_->statuses, ::testing::IsEmpty());
}

TEST_F(MappedTransportTest, PayloadsOutsideTheArenaTakeTheOtherTransport) {
  Connect(true, true);
  OpenMapping();
  const std::vector<std::byte> elsewhere(1000, std::byte{5});
  const int done = done_;
  owner_->transport->Send(owner_->peer, v1::KvFrame(), {absl::MakeConstSpan(elsewhere)},
                          [&](const absl::Status&) { ++done_; });
  ASSERT_TRUE(Pump(*owner_, *reader_, [&] { return done_ > done && !reader_->statuses.empty(); }));
  EXPECT_EQ(reader_->landed, elsewhere);
  EXPECT_FALSE(reader_->last.checksum.has_value());
}

TEST_F(MappedTransportTest, APrivateArenaIsNotOffered) {
  owner_ = std::make_unique<Side>(true, MappedTransportOptions(), kv::ArenaMemory::kPrivate);
  reader_ = std::make_unique<Side>(false);
  owner_->peer = *owner_->transport->Connect(
      {NodeId("reader"), Incarnation(1), reader_->transport->address(), "host"});
  for (int i = 0; i < 3; ++i) SendBlocks(1);
  EXPECT_TRUE(Pump(*owner_, *reader_, [&] { return done_ == 3 && reader_->statuses.size() == 3; }));
  EXPECT_FALSE(reader_->Mapping(v1::KvMapping::OFFER).has_value());
}

// ---- hostile readers: the test is the reader ----

TEST_F(MappedTransportTest, AReaderThatNeverAcknowledgesHoldsSendsUntilItIsDropped) {
  Connect(true, false);
  SendBlocks(1);  // goes the other way, and offers
  ASSERT_TRUE(Pump(*owner_, *reader_, [&] {
    return reader_->Mapping(v1::KvMapping::OFFER).has_value() && done_ == 1;
  }));
  v1::KvMapping ready;
  ready.set_number(reader_->Mapping(v1::KvMapping::OFFER)->number());
  ready.set_kind(v1::KvMapping::READY);
  ready.set_from_reader(true);
  reader_->SendMapping(ready, "not the fleet's secret");
  reader_->SendMapping(ready);
  ASSERT_TRUE(Pump(*owner_, *reader_,
                   [&] { return owner_->transport->TransportName(owner_->peer) == "shm+mapped"; }));
  SendBlocks(2);
  const size_t before = reader_->frames.size();
  ASSERT_TRUE(Pump(*owner_, *reader_, [&] { return reader_->frames.size() > before; }));
  EXPECT_TRUE(reader_->frames.back().has_via_mapping());
  // It reports payloads that were never sent.
  v1::KvMapping taken = ready;
  taken.set_kind(v1::KvMapping::TAKEN);
  for (uint64_t ordinal : {7u, 1u, 1u << 31}) taken.add_taken(ordinal);
  reader_->SendMapping(taken);
  for (int i = 0; i < 1000; ++i) {
    reader_->transport->Progress();
    owner_->transport->Progress();
  }
  EXPECT_EQ(done_, 1);
  owner_->transport->Disconnect(owner_->peer);
  ASSERT_TRUE(Pump(*owner_, *reader_, [&] { return done_ == 2; }));
  EXPECT_EQ(done_status_.code(), absl::StatusCode::kCancelled);
}

// Who hears that a send was given up may send again before the connection is gone.
TEST_F(MappedTransportTest, APeerThatIsDroppedIsOfferedNothingMore) {
  Connect(true, false);
  SendBlocks(1);
  ASSERT_TRUE(Pump(*owner_, *reader_, [&] {
    return reader_->Mapping(v1::KvMapping::OFFER).has_value() && done_ == 1;
  }));
  v1::KvMapping ready;
  const uint64_t offered = reader_->Mapping(v1::KvMapping::OFFER)->number();
  ready.set_number(offered);
  ready.set_kind(v1::KvMapping::READY);
  ready.set_from_reader(true);
  reader_->SendMapping(ready);
  ASSERT_TRUE(Pump(*owner_, *reader_,
                   [&] { return owner_->transport->TransportName(owner_->peer) == "shm+mapped"; }));
  bool sent_again = false;
  owner_->transport->Send(owner_->peer, {}, {owner_->arena->Block(0, BlockId(0))},
                          [&](const absl::Status& status) {
                            EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
                            sent_again = true;
                            SendBlocks(1);
                          });
  owner_->transport->Disconnect(owner_->peer);
  ASSERT_TRUE(Pump(*owner_, *reader_, [&] { return sent_again && done_ == 2; }));
  for (int i = 0; i < 100; ++i) {
    owner_->transport->Progress();
    reader_->transport->Progress();
  }
  EXPECT_EQ(reader_->Mapping(v1::KvMapping::OFFER)->number(), offered);
}

TEST_F(MappedTransportTest, AReaderThatDeclinesGetsThePayloadsTheOtherWay) {
  Connect(true, false);
  SendBlocks(1);
  ASSERT_TRUE(Pump(*owner_, *reader_, [&] {
    return reader_->Mapping(v1::KvMapping::OFFER).has_value() && done_ == 1;
  }));
  const v1::KvMapping offer = *reader_->Mapping(v1::KvMapping::OFFER);
  v1::KvMapping answer;
  answer.set_number(offer.number());
  answer.set_from_reader(true);
  answer.set_kind(v1::KvMapping::READY);
  reader_->SendMapping(answer);
  ASSERT_TRUE(Pump(*owner_, *reader_,
                   [&] { return owner_->transport->TransportName(owner_->peer) == "shm+mapped"; }));
  reader_->statuses.clear();
  SendBlocks(1);
  answer.set_kind(v1::KvMapping::CLOSED);
  reader_->SendMapping(answer);
  ASSERT_TRUE(Pump(*owner_, *reader_, [&] { return done_ == 2 && !reader_->statuses.empty(); }));
  EXPECT_OK(done_status_);
  EXPECT_EQ(owner_->transport->TransportName(owner_->peer), "shm");
  // The ticket is of no use any more: this reader maps after its lease on the arena ended.
  auto call = ArenaDescriptorCall::Start(kSecret, offer.socket(), offer.ticket(), offer.number());
  ASSERT_OK(call.status());
  absl::StatusOr<std::optional<OwnedDescriptor>> got = std::optional<OwnedDescriptor>();
  for (int i = 0; i < 1000 && got.ok(); ++i) {
    owner_->transport->Progress();
    got = (*call)->Poll();
    ASSERT_TRUE(!got.ok() || !got->has_value());
  }
}

TEST_F(MappedTransportTest, AReaderThatNeverAnswersCostsNothing) {
  Connect(true, false, {.open_within = absl::ZeroDuration()});
  for (int i = 0; i < 5; ++i) SendBlocks(1);
  EXPECT_TRUE(Pump(*owner_, *reader_, [&] {
    return done_ == 5 && reader_->Mapping(v1::KvMapping::CLOSED).has_value();
  }));
  EXPECT_EQ(reader_->statuses.size(), 5u);
}

// ---- hostile owners: the test is the owner ----

class HostileOwnerTest : public MappedTransportTest {
 protected:
  // Serves `descriptor`, of an arena of `bytes` bytes, from now on.
  v1::KvMapping NewOffer(int descriptor, uint64_t bytes, uint64_t number) {
    server_ = *ArenaDescriptorServer::Start(kSecret, descriptor);
    v1::KvMapping offer;
    offer.set_number(number);
    offer.set_kind(v1::KvMapping::OFFER);
    offer.set_socket(server_->socket_name());
    offer.set_ticket(server_->MakeTicket(number));
    offer.set_arena_bytes(bytes);
    owner_->frames.clear();
    return offer;
  }
  // Offers it; whether the reader mapped it.
  bool Offer(int descriptor, uint64_t bytes, uint64_t number = 1) {
    owner_->SendMapping(NewOffer(descriptor, bytes, number));
    EXPECT_TRUE(Pump(*owner_, *reader_, [&] {
      server_->Progress(absl::Now());
      return !owner_->frames.empty();
    }));
    return owner_->Mapping(v1::KvMapping::READY).has_value();
  }
  bool OfferArena(uint64_t number = 1) {
    return Offer(owner_->arena->descriptor(), owner_->arena->bytes().size(), number);
  }
  // A data frame with these pieces; whether the reader closed the mapping upon it.
  bool IsClosedBy(const std::vector<uint64_t>& offsets, const std::vector<uint64_t>& lengths) {
    v1::KvFrame frame;
    frame.mutable_via_mapping()->set_mapping(1);
    for (uint64_t offset : offsets) frame.mutable_via_mapping()->add_offsets(offset);
    for (uint64_t length : lengths) frame.mutable_via_mapping()->add_lengths(length);
    owner_->frames.clear();
    owner_->transport->Send(owner_->peer, frame, {}, nullptr);
    EXPECT_TRUE(Pump(*owner_, *reader_, [&] { return !owner_->frames.empty(); }));
    return owner_->Mapping(v1::KvMapping::CLOSED).has_value();
  }
  std::unique_ptr<ArenaDescriptorServer> server_;
};

TEST_F(HostileOwnerTest, PiecesOutsideTheArenaEndTheMapping) {
  const uint64_t end = 8 * kCell;
  const std::vector<std::pair<std::vector<uint64_t>, std::vector<uint64_t>>> cases = {
      {{end}, {1}},
      {{end - 1}, {2}},
      {{0}, {end + 1}},
      {{~uint64_t{0}}, {1}},
      {{1}, {~uint64_t{0}}},
      {{0}, {0}},
      {{0, 0}, {1}},
      {{}, {}},
      {{0, end - 8}, {8, 16}},
  };
  for (const auto& [offsets, lengths] : cases) {
    Connect(false, true);
    ASSERT_TRUE(OfferArena());
    EXPECT_TRUE(IsClosedBy(offsets, lengths));
    EXPECT_THAT(reader_->landed, ::testing::IsEmpty());
  }
}

TEST_F(HostileOwnerTest, TheWholeArenaIsAPayloadAtTheBound) {
  Connect(false, true);
  ASSERT_TRUE(OfferArena());
  EXPECT_FALSE(IsClosedBy({0}, {owner_->arena->bytes().size()}));
  EXPECT_EQ(reader_->landed.size(), owner_->arena->bytes().size());
}

TEST_F(HostileOwnerTest, AReaderWaitsWhileTheOwnersSocketIsFull) {
  Connect(false, true);
  const v1::KvMapping offer =
      NewOffer(owner_->arena->descriptor(), owner_->arena->bytes().size(), 1);
  std::vector<OwnedDescriptor> callers;
  absl::Status called;
  while (called.ok()) {
    ASSERT_LT(callers.size(), 1000u) << "calls that the owner has not taken";
    auto caller = ConnectLocal(offer.socket(), LocalSocketType::kMessages);
    called = caller.status();
    if (caller.ok()) callers.push_back(*std::move(caller));
  }
  ASSERT_EQ(called.code(), absl::StatusCode::kResourceExhausted);
  owner_->SendMapping(offer);
  v1::KvFrame later;
  later.set_lease_id(1);
  owner_->transport->Send(owner_->peer, later, {}, nullptr);
  reader_->frames.clear();
  ASSERT_TRUE(Pump(*owner_, *reader_, [&] { return !reader_->frames.empty(); }));
  callers.clear();
  ASSERT_TRUE(Pump(*owner_, *reader_, [&] {
    server_->Progress(absl::Now());
    return !owner_->frames.empty();
  }));
  EXPECT_TRUE(owner_->Mapping(v1::KvMapping::READY).has_value());
}

TEST_F(HostileOwnerTest, MemoryThatMayShrinkIsNotMapped) {
  Connect(false, true);
  const OwnedDescriptor unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 8192), 0);
  EXPECT_FALSE(Offer(unsealed.get(), 8192, 1));
  // Its size is not what the offer says.
  EXPECT_FALSE(Offer(owner_->arena->descriptor(), 4096, 2));
  EXPECT_TRUE(OfferArena(3));
}

TEST_F(HostileOwnerTest, MappingsAndTheirBytesAreBounded) {
  const uint64_t arena_bytes = Side(false).arena->bytes().size();
  Connect(false, true, {.mappings_max = 1, .mapped_bytes_max = 2 * arena_bytes - 1});
  EXPECT_TRUE(OfferArena(1));
  // A second offer takes the place of the first one.
  EXPECT_TRUE(OfferArena(2));
  EXPECT_FALSE(Offer(owner_->arena->descriptor(), 2 * arena_bytes, 3));
  EXPECT_FALSE(Offer(owner_->arena->descriptor(), ~uint64_t{0}, 4));
  EXPECT_TRUE(OfferArena(5));
  // Another peer's arena is one mapping too many.
  std::unique_ptr<Side> first = std::exchange(owner_, nullptr);
  owner_ = std::make_unique<Side>(false);
  owner_->peer = *owner_->transport->Connect(
      {NodeId("reader"), Incarnation(1), reader_->transport->address(), "host"});
  EXPECT_FALSE(OfferArena(1));
  // Until the first one leaves.
  first.reset();
  ASSERT_TRUE(Pump(*owner_, *reader_, [&] { return reader_->lost; }));
  EXPECT_TRUE(OfferArena(2));
}

// Descriptors that this process has open.
size_t OpenDescriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd"), end;
  return static_cast<size_t>(std::distance(open, end));
}

TEST_F(HostileOwnerTest, OffersWithoutEndHoldOneDescriptorAtATime) {
  constexpr uint64_t kOffers = 500;
  Connect(false, true);
  ASSERT_TRUE(OfferArena(1));
  server_ = *ArenaDescriptorServer::Start(kSecret, owner_->arena->descriptor());
  const size_t before = OpenDescriptors();
  size_t most = 0;
  for (uint64_t number = 2; number < kOffers; ++number) {
    v1::KvMapping offer;
    offer.set_number(number);
    offer.set_kind(v1::KvMapping::OFFER);
    offer.set_socket(server_->socket_name());
    offer.set_ticket(server_->MakeTicket(number));
    offer.set_arena_bytes(owner_->arena->bytes().size());
    owner_->SendMapping(offer);
    // The owner answers none of the calls.
    owner_->transport->Progress();
    reader_->transport->Progress();
    most = std::max(most, OpenDescriptors());
  }
  // The reader's call, and the copy that this process holds of its other end.
  EXPECT_LE(most, before + 4);
  // Answers to earlier offers are still on their way.
  OfferArena(kOffers);
  EXPECT_TRUE(Pump(*owner_, *reader_, [&] {
    server_->Progress(absl::Now());
    const std::optional<v1::KvMapping> ready = owner_->Mapping(v1::KvMapping::READY);
    return ready.has_value() && ready->number() == kOffers;
  })) << "the reader does not go on with an honest owner";
}

TEST_F(MappedTransportTest, AReaderThatComesAfterItsPeerWasDroppedGetsNoDescriptor) {
  Connect(true, false);
  SendBlocks(1);
  ASSERT_TRUE(Pump(*owner_, *reader_, [&] {
    return reader_->Mapping(v1::KvMapping::OFFER).has_value() && done_ == 1;
  }));
  const v1::KvMapping offer = *reader_->Mapping(v1::KvMapping::OFFER);
  owner_->transport->Disconnect(owner_->peer);
  // Another reader's offer is open, so callers are served.
  const std::unique_ptr<Side> honest = std::make_unique<Side>(false);
  owner_->peer = *owner_->transport->Connect(
      {NodeId("honest"), Incarnation(1), honest->transport->address(), "host"});
  ASSERT_TRUE(Pump(*owner_, *honest, [&] {
    if (done_ == static_cast<int>(lease_)) SendBlocks(1);
    return honest->Mapping(v1::KvMapping::OFFER).has_value();
  }));
  auto late = ArenaDescriptorCall::Start(kSecret, offer.socket(), offer.ticket(), offer.number());
  ASSERT_OK(late.status());
  absl::StatusOr<std::optional<OwnedDescriptor>> got = std::optional<OwnedDescriptor>();
  ASSERT_TRUE(Pump(*owner_, *honest, [&] {
    got = (*late)->Poll();
    return !got.ok() || got->has_value();
  }));
  EXPECT_EQ(got.status().code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace tandem::transfer
