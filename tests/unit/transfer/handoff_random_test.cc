// Goal: whatever the network and the cores do to hand-offs (drops, duplicates, reordering, damage,
// broken connections, cancels, raised epochs, closed leases), every command is answered exactly
// once, what is installed equals its source bit for bit, no byte lands in a block that is not
// leased, no source block is read after its export ended, and nothing is left at the end; the same
// when payloads travel by links that fail, stand still or never open. Seeds are printed.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "common/transfer/handoff_endpoint.h"
#include "common/transfer/link_transport.h"
#include "tests/testing/faulty_network.h"
#include "tests/testing/loopback_links.h"

namespace tandem::transfer {
namespace {

using ::tandem::testing::Faults;
using ::tandem::testing::FaultyNetwork;
using ::tandem::testing::LinkFaults;
using ::tandem::testing::LoopbackLinks;

constexpr int kLayers = 3;
constexpr int64_t kCellBytes = 64;
constexpr int kBlocks = 48;
constexpr auto kFree = std::byte{0xFE};    // in blocks nobody owns
constexpr auto kLeased = std::byte{0xAA};  // in blocks of a new lease
constexpr auto kReused = std::byte{0x55};  // in source blocks whose export ended

// The world's time.
struct StepClock final : Clock {
  absl::Time Now() const override { return now; }
  absl::Time now = absl::UnixEpoch();
};

struct Side {
  // `links`: null when payloads take the network.
  Side(FaultyNetwork& network, LoopbackLinks* links, const StepClock& clock,
       uint64_t incarnation_in)
      : incarnation(incarnation_in) {
    arena = *kv::BlockArena::Create(
        {.num_layers = kLayers, .block_tokens = 16, .layer_block_bytes = kCellBytes}, kBlocks);
    auto faulty = network.NewTransport();
    wire = faulty.get();
    transport = std::move(faulty);
    if (links != nullptr) {
      LinkOptions link_options;
      link_options.fleet_secret = "fleet";
      link_options.open_within = absl::Milliseconds(60);
      link_options.move_within = absl::Milliseconds(50);
      link_options.clock = &clock;
      transport =
          NewLinkTransport(link_options, std::move(transport), links->NewEnd(3, 6 * kCellBytes));
    }
    HandoffOptions options;
    options.incarnation = incarnation;
    options.fleet_secret = "fleet";
    options.frame_bytes_min = 4 * kCellBytes;
    options.frame_bytes_max = 6 * kCellBytes;
    options.export_bytes_in_flight_max = 20 * kCellBytes;
    options.nack_after = absl::Milliseconds(20);
    options.drain_after = absl::Milliseconds(100);
    endpoint = HandoffEndpoint::Create(options, *arena, *transport);
    for (int i = 0; i < kBlocks; ++i) {
      free.push_back(BlockId(i));
      Fill(BlockId(i), kFree);
    }
  }
  void Fill(BlockId block, std::byte value) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const absl::Span<std::byte> cell = arena->Block(layer, block);
      std::memset(cell.data(), static_cast<int>(value), cell.size());
    }
  }
  bool Holds(BlockId block, std::byte value) const {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const std::byte byte : arena->Block(layer, block)) {
        if (byte != value) return false;
      }
    }
    return true;
  }
  Incarnation incarnation;
  std::unique_ptr<kv::BlockArena> arena;
  FaultyNetwork::Transport* wire = nullptr;
  std::unique_ptr<KvTransport> transport;
  std::unique_ptr<HandoffEndpoint> endpoint;
  std::vector<BlockId> free;
};

// The bytes of one cell of one sequence: a function of what it stands for.
std::byte CellByte(uint64_t sequence, int ordinal, int layer, size_t i) {
  return static_cast<std::byte>((sequence * 131 + ordinal * 29 + layer * 7 + i * 3 + 1) & 0xFF);
}

class World {
 public:
  World(uint64_t seed, const Faults& faults, const LinkFaults* link_faults)
      : network_(seed, faults), random_(NewSeededRandom(seed ^ 0x5EED)) {
    if (link_faults != nullptr) links_.emplace(seed ^ 0x117C, *link_faults);
    for (int i = 0; i < 3; ++i) {
      sides_.push_back(std::make_unique<Side>(network_, links_.has_value() ? &*links_ : nullptr,
                                              clock_, 100 + i));
    }
  }

  void Run(int steps) {
    for (int i = 0; i < steps; ++i) {
      if (random_->Below(4) == 0) StartLease();
      if (random_->Below(3) == 0) Disturb();
      Step();
    }
    // Peace: no new leases, a sound network, all deadlines pass.
    network_.set_faults({});
    if (links_.has_value()) links_->set_faults({});
    for (auto& [id, lease] : leases_) lease.give_up = true;
    for (int i = 0; i < 5000 && !Quiet(); ++i) Step();
    by_link = links_.has_value() ? links_->delivered() : 0;
    EXPECT_TRUE(leases_.empty()) << leases_.size() << " leases never ended";
    EXPECT_TRUE(exports_.empty()) << exports_.size() << " exports never ended";
    for (const auto& side : sides_) {
      const TransferCounters counters = side->endpoint->counters();
      EXPECT_EQ(counters.leases_open, 0);
      EXPECT_EQ(counters.exports_open, 0);
      EXPECT_EQ(counters.sends_in_flight, 0);
      EXPECT_EQ(counters.receives_in_flight, 0);
      EXPECT_EQ(side->free.size(), static_cast<size_t>(kBlocks));
      for (const BlockId block : side->free) EXPECT_TRUE(side->Holds(block, kFree));
    }
  }
  int installed = 0, drained = 0, exports_failed = 0;
  int64_t by_link = 0;   // payloads
  int64_t verified = 0;  // blocks that a next epoch found verified

 private:
  struct LeaseRecord {
    Side* receiver = nullptr;
    uint64_t sequence = 0;
    Epoch epoch;
    int first_ordinal = 0;
    std::vector<BlockId> blocks;
    bool closing = false, failed = false, give_up = false;
    size_t verified = 0;  // blocks, as told when the epoch was raised
  };
  struct ExportRecord {
    Side* sender = nullptr;
    std::vector<BlockId> blocks;
    int first_ordinal = 0;
    std::vector<PushRange> pushes;  // not yet made
    bool finished = false;
  };

  bool Quiet() const {
    for (const auto& side : sides_) {
      const TransferCounters counters = side->endpoint->counters();
      if (counters.sends_in_flight + counters.receives_in_flight > 0) return false;
    }
    return leases_.empty() && exports_.empty() && network_.idle();
  }
  Side& AnySide() { return *sides_[random_->Below(sides_.size())]; }
  std::vector<BlockId> Take(Side& side, size_t count) {
    std::vector<BlockId> blocks;
    while (blocks.size() < count && !side.free.empty()) {
      const size_t i = random_->Below(side.free.size());
      EXPECT_TRUE(side.Holds(side.free[i], kFree)) << "a byte landed in a free block";
      blocks.push_back(side.free[i]);
      side.free.erase(side.free.begin() + static_cast<ptrdiff_t>(i));
    }
    return blocks;
  }
  void Give(Side& side, const std::vector<BlockId>& blocks) {
    for (const BlockId block : blocks) {
      side.Fill(block, kFree);
      side.free.push_back(block);
    }
  }

  void StartLease() {
    Side& receiver = AnySide();
    LeaseRecord lease;
    lease.receiver = &receiver;
    lease.blocks = Take(receiver, 1 + random_->Below(6));
    if (lease.blocks.empty()) return;
    for (const BlockId block : lease.blocks) receiver.Fill(block, kLeased);
    const LeaseId id(next_id_++);
    lease.sequence = id.value();
    lease.epoch = Epoch(1);
    lease.first_ordinal = static_cast<int>(random_->Below(5));
    receiver.endpoint->Handle(OpenLease{id, lease.epoch, lease.first_ordinal, lease.blocks, Soon()},
                              now_);
    leases_[id] = lease;
    StartExport(id, 0);
  }

  // A sender for the lease's current epoch that has everything from `skip` blocks on.
  void StartExport(LeaseId id, int skip) {
    const LeaseRecord& lease = leases_[id];
    Side* sender = &AnySide();
    while (sender == lease.receiver) sender = &AnySide();
    const int count = static_cast<int>(lease.blocks.size()) - skip;
    if (count <= 0) skip = 0;
    ExportRecord exported;
    exported.sender = sender;
    exported.first_ordinal = lease.first_ordinal + skip;
    exported.blocks = Take(*sender, lease.blocks.size() - skip);
    if (exported.blocks.size() != lease.blocks.size() - skip) {
      Give(*sender, exported.blocks);
      return;  // the lease's deadline ends this epoch
    }
    for (size_t b = 0; b < exported.blocks.size(); ++b) {
      for (int layer = 0; layer < kLayers; ++layer) {
        const absl::Span<std::byte> cell = sender->arena->Block(layer, exported.blocks[b]);
        for (size_t i = 0; i < cell.size(); ++i) {
          cell[i] =
              CellByte(lease.sequence, exported.first_ordinal + static_cast<int>(b), layer, i);
        }
      }
    }
    const ExportId export_id(next_id_++);
    PlanPushes(export_id, exported);
    sender->endpoint->Handle(
        OpenExport{export_id,
                   PeerAddress{NodeId("receiver"), lease.receiver->incarnation,
                               lease.receiver->transport->address(), "host"},
                   id, lease.epoch, exported.first_ordinal, exported.blocks, Soon()},
        now_);
    exports_[export_id] = std::move(exported);
  }

  // Cached blocks whole, then chunks layer by layer.
  void PlanPushes(ExportId id, ExportRecord& exported) {
    const int count = static_cast<int>(exported.blocks.size());
    int at = static_cast<int>(random_->Below(count + 1));
    if (at > 0) exported.pushes.push_back({id, exported.first_ordinal, at, 0, kLayers});
    while (at < count) {
      const int chunk = 1 + static_cast<int>(random_->Below(count - at));
      for (int layer = 0; layer < kLayers; ++layer) {
        exported.pushes.push_back({id, exported.first_ordinal + at, chunk, layer, 1});
      }
      at += chunk;
    }
  }

  void Disturb() {
    if (!leases_.empty() && random_->Below(12) == 0) Close(Pick(leases_));
    if (!leases_.empty() && random_->Below(12) == 0) Raise(Pick(leases_));
    if (!exports_.empty() && random_->Below(12) == 0) {
      const ExportId id = Pick(exports_);
      exports_[id].sender->endpoint->Handle(CancelExport{id, "random cancel"}, now_);
    }
    if (random_->Below(60) == 0) {
      const size_t a = random_->Below(3);
      network_.Break(*sides_[a]->wire, *sides_[(a + 1) % 3]->wire);
    }
  }
  template <typename Map>
  typename Map::key_type Pick(const Map& map) {
    return std::next(map.begin(), static_cast<ptrdiff_t>(random_->Below(map.size())))->first;
  }
  void Close(LeaseId id) {
    LeaseRecord& lease = leases_[id];
    if (lease.closing) return;  // each close is answered once; one is enough to know
    lease.closing = true;
    lease.receiver->endpoint->Handle(CloseLease{id, "random close"}, now_);
  }
  void Raise(LeaseId id) {
    LeaseRecord& lease = leases_[id];
    if (lease.closing) return;
    lease.epoch = Epoch(lease.epoch.value() + 1);
    lease.failed = false;
    lease.receiver->endpoint->Handle(RaiseEpoch{id, lease.epoch, Soon()}, now_);
  }
  // The first `blocks` blocks hold what was sent, whoever sent it.
  void ExpectContent(const Side& side, const LeaseRecord& lease, size_t blocks) {
    for (size_t b = 0; b < blocks; ++b) {
      for (int layer = 0; layer < kLayers; ++layer) {
        const absl::Span<std::byte> cell = side.arena->Block(layer, lease.blocks[b]);
        for (size_t i = 0; i < cell.size(); ++i) {
          ASSERT_EQ(cell[i],
                    CellByte(lease.sequence, lease.first_ordinal + static_cast<int>(b), layer, i));
        }
      }
    }
  }

  void Step() {
    now_ += absl::Milliseconds(1);
    clock_.now = now_;
    for (auto& [id, exported] : exports_) {
      if (exported.finished || random_->Below(2) == 0) continue;
      if (!exported.pushes.empty()) {
        exported.sender->endpoint->Handle(exported.pushes.front(), now_);
        exported.pushes.erase(exported.pushes.begin());
      } else {
        v1::GeneratedToken token;
        token.set_token_id(static_cast<int>(id.value()));
        exported.sender->endpoint->Handle(FinishExport{id, token}, now_);
        exported.finished = true;
      }
    }
    network_.Step();
    for (const auto& side : sides_) {
      side->transport->Progress();
      side->endpoint->Tick(now_);
      for (const TransferEvent& event : side->endpoint->TakeEvents()) {
        std::visit([&](const auto& typed) { On(*side, typed); }, event);
      }
    }
  }

  void On(Side& side, const LeaseInstalled& event) {
    const auto it = leases_.find(event.lease);
    ASSERT_NE(it, leases_.end()) << "installed twice, or after the drain";
    const LeaseRecord& lease = it->second;
    ASSERT_EQ(lease.receiver, &side);
    EXPECT_EQ(event.epoch, lease.epoch) << "installed by a stale epoch";
    ExpectContent(side, lease, lease.blocks.size());
    ++installed;
    if (lease.closing) {
      // The close raced with the installation; its LeaseDrained ends the record.
      return;
    }
    Give(side, lease.blocks);
    leases_.erase(it);
  }
  void On(Side&, const LeaseFailed& event) {
    const auto it = leases_.find(event.lease);
    ASSERT_NE(it, leases_.end());
    LeaseRecord& lease = it->second;
    if (event.epoch != lease.epoch) return;  // raised meanwhile
    EXPECT_FALSE(lease.failed) << "an epoch failed twice";
    lease.failed = true;
    if (lease.give_up || random_->Below(2) == 0) {
      Close(event.lease);
    } else {
      Raise(event.lease);
    }
  }
  // Another sender goes on behind what is verified; or nobody does, and it stays as it is.
  void On(Side& side, const EpochRaised& event) {
    const auto it = leases_.find(event.lease);
    ASSERT_NE(it, leases_.end()) << "raised after its end";
    LeaseRecord& lease = it->second;
    if (event.epoch != lease.epoch || lease.closing) return;
    ASSERT_LE(event.verified_blocks, static_cast<int>(lease.blocks.size()));
    lease.verified = static_cast<size_t>(event.verified_blocks);
    verified += event.verified_blocks;
    ExpectContent(side, lease, lease.verified);
    if (random_->Below(4) == 0) {
      Close(event.lease);
    } else {
      StartExport(event.lease, event.verified_blocks);
    }
  }
  void On(Side& side, const LeaseDrained& event) {
    const auto it = leases_.find(event.lease);
    ASSERT_NE(it, leases_.end()) << "drained twice";
    ASSERT_TRUE(it->second.closing) << "drained without a close";
    ExpectContent(side, it->second, it->second.verified);
    Give(side, it->second.blocks);
    leases_.erase(it);
    ++drained;
  }
  void On(Side& side, const ExportDone& event) { EndExport(side, event.export_id); }
  void On(Side& side, const ExportFailed& event) {
    ++exports_failed;
    EndExport(side, event.export_id);
  }
  void EndExport(Side& side, ExportId id) {
    const auto it = exports_.find(id);
    ASSERT_NE(it, exports_.end()) << "an export ended twice";
    // Reused at once: a frame still reading them would be found out by its checksum and content.
    for (const BlockId block : it->second.blocks) side.Fill(block, kReused);
    Give(side, it->second.blocks);
    exports_.erase(it);
  }
  absl::Time Soon() { return now_ + absl::Milliseconds(300 + random_->Below(300)); }

  FaultyNetwork network_;
  std::optional<LoopbackLinks> links_;
  StepClock clock_;
  std::unique_ptr<Random> random_;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<std::unique_ptr<Side>> sides_;
  std::map<LeaseId, LeaseRecord> leases_;
  std::map<ExportId, ExportRecord> exports_;
  uint64_t next_id_ = 1;
};

// Returns how many payloads came by links.
int64_t RunSeeds(const Faults& faults, uint64_t first_seed,
                 const LinkFaults* link_faults = nullptr) {
  int installed = 0, drained = 0, failed = 0;
  int64_t by_link = 0, verified = 0;
  for (uint64_t seed = first_seed; seed < first_seed + 40; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    World world(seed, faults, link_faults);
    world.Run(1500);
    installed += world.installed;
    drained += world.drained;
    failed += world.exports_failed;
    by_link += world.by_link;
    verified += world.verified;
    if (::testing::Test::HasFailure()) break;
  }
  std::printf("seeds %llu..%llu: installed=%d drained=%d exports_failed=%d by_link=%lld\n",
              static_cast<unsigned long long>(first_seed),
              static_cast<unsigned long long>(first_seed + 39), installed, drained, failed,
              static_cast<long long>(by_link));
  // The test would be empty if hardly anything got through, or hardly anything was disturbed.
  EXPECT_GT(installed, 400);
  EXPECT_GT(drained, 40);
  EXPECT_GT(verified, 40);
  return by_link;
}

TEST(HandoffRandomTest, SoundNetwork) { RunSeeds({.delay_steps_max = 0}, 1000); }
TEST(HandoffRandomTest, Reordering) { RunSeeds({.delay_steps_max = 30}, 2000); }
TEST(HandoffRandomTest, DropsAndDuplicates) {
  RunSeeds({.drop = 0.1, .duplicate = 0.1, .delay_steps_max = 10}, 3000);
}
TEST(HandoffRandomTest, Damage) {
  RunSeeds({.damage_payload = 0.1, .damage_header = 0.05, .delay_steps_max = 10}, 4000);
}
constexpr Faults kEverything = {.drop = 0.05,
                                .duplicate = 0.1,
                                .damage_payload = 0.05,
                                .damage_header = 0.03,
                                .delay_steps_max = 60};
TEST(HandoffRandomTest, Everything) { RunSeeds(kEverything, 5000); }

TEST(HandoffRandomTest, SoundLinks) {
  const LinkFaults faults = {.delay_steps_max = 4};
  EXPECT_GT(RunSeeds({.delay_steps_max = 0}, 6000, &faults), 10'000);
}
TEST(HandoffRandomTest, LinksWithLateHeaders) {
  const LinkFaults faults = {.delay_steps_max = 4};
  EXPECT_GT(RunSeeds({.duplicate = 0.1, .delay_steps_max = 12}, 7000, &faults), 1000);
}
TEST(HandoffRandomTest, LinksThatFail) {
  const LinkFaults faults = {
      .refuse = 0.1, .never = 0.1, .fail = 0.002, .stall = 0.002, .delay_steps_max = 6};
  EXPECT_GT(RunSeeds({.delay_steps_max = 4}, 8000, &faults), 1000);
}
TEST(HandoffRandomTest, LinksAndEverything) {
  const LinkFaults faults = {
      .refuse = 0.1, .never = 0.1, .fail = 0.001, .stall = 0.001, .delay_steps_max = 6};
  EXPECT_GT(RunSeeds(kEverything, 9000, &faults), 100);
}

}  // namespace
}  // namespace tandem::transfer
