// The KV transfers of three nodes on a faulty network, driven by choices: leases open, close and
// change epochs; exports push and are cancelled; connections break; a hostile process may
// interfere. After every event the world checks the promises of the KV transfer: each command is
// answered once; what is installed equals its source bit for bit; no byte lands in a block that is
// not leased; no source block is read after its export ended; nothing is left at the end. Thread
// safety: none.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/runtime/clock.h"
#include "common/transfer/kv_transfer_endpoint.h"
#include "tests/testing/faulty_network.h"
#include "tests/testing/kv_transfer_side.h"
#include "tests/testing/loopback_channels.h"

namespace tandem::testing {

// What is between a world's nodes and its network.
struct KvTransferWorldLayers {
  // Implicit, because most worlds have channels at most.
  KvTransferWorldLayers(const ChannelFaults* channel_faults)
      : channels(channel_faults) {}         // NOLINT
  const ChannelFaults* channels = nullptr;  // null: payloads take the network
  std::optional<transfer::SealedTransportOptions> sealed;
};

class KvTransferWorld {
 public:
  // What a hostile process of the network does in a step.
  using Stranger = std::function<void(KvTransferWorld&)>;

  // `random` decides what happens; `seed` what the network and the channels do, by `faults` and
  // `layers.channels`. `new_memory`: null for blocks in the arenas.
  KvTransferWorld(std::unique_ptr<Random> random, uint64_t seed, const Faults& faults,
                  const KvTransferWorldLayers& layers,
                  const NewKvTransferMemory& new_memory = nullptr)
      : network_(seed, faults), random_(std::move(random)) {
    if (layers.channels != nullptr) channels_.emplace(seed ^ 0x117C, *layers.channels);
    const KvTransferLayers side_layers = {channels_.has_value() ? &*channels_ : nullptr,
                                          layers.sealed};
    for (uint64_t i = 0; i < 3; ++i) {
      sides_.push_back(std::make_unique<KvTransferSide>(network_, side_layers, clock_,
                                                        Incarnation(100 + i), new_memory));
    }
  }

  void set_stranger(Stranger stranger) { stranger_ = std::move(stranger); }
  FaultyNetwork& network() { return network_; }
  const std::vector<std::unique_ptr<KvTransferSide>>& sides() const { return sides_; }
  // The lease that would be opened next; smaller ids were used, by leases or exports.
  uint64_t next_id() const { return next_id_; }

  // Advances one millisecond, in which anything may begin.
  void Live() {
    if (random_->Below(4) == 0) StartLease();
    if (random_->Below(3) == 0) Disturb();
    Step();
  }
  // Runs to the end: no new leases, no faults, no hostile process, and all deadlines pass. Then
  // nothing may be left.
  void Settle() {
    network_.set_faults({});
    if (channels_.has_value()) channels_->set_faults({});
    stranger_ = nullptr;
    for (auto& [id, lease] : leases_) lease.give_up = true;
    for (int i = 0; i < 5000 && !Quiet(); ++i) Step();
    if (channels_.has_value()) by_channel = channels_->delivered();
    Require(leases_.empty(), "leases never ended");
    Require(exports_.empty(), "exports never ended");
    for (const auto& side : sides_) {
      const transfer::TransferCounters counters = side->endpoint->counters();
      Require(counters.leases_open == 0 && counters.exports_open == 0, "open at the end");
      Require(counters.sends_in_flight == 0 && counters.receives_in_flight == 0,
              "in flight at the end");
      Require(side->memory.payloads == nullptr || side->memory.payloads->slots_in_use() == 0,
              "slots were lost");
      Require(side->free.size() == static_cast<size_t>(KvTransferSide::kBlocks),
              "blocks were lost");
      for (const BlockId block : side->free) {
        Require(side->Holds(block, KvTransferSide::kFree), "a byte landed in a free block");
      }
    }
  }
  // The first broken promise; empty when there is none.
  const std::string& failure() const { return failure_; }

  int installed = 0, drained = 0, exports_failed = 0, leases_failed = 0;
  int64_t by_channel = 0;  // payloads
  int64_t verified = 0;    // blocks that a next epoch found verified
  // Of every event so far, with its time: equal worlds have equal histories.
  uint64_t history = 0;

 private:
  struct LeaseRecord {
    KvTransferSide* receiver = nullptr;
    uint64_t sequence = 0;
    Epoch epoch;
    int first_ordinal = 0;
    std::vector<BlockId> blocks;
    bool closing = false, failed = false, give_up = false;
    size_t verified = 0;  // blocks, as told when the epoch was raised
  };
  struct ExportRecord {
    KvTransferSide* sender = nullptr;
    std::vector<BlockId> blocks;
    int first_ordinal = 0;
    std::vector<transfer::PushRange> pushes;  // not yet made
    bool finished = false;
  };

  void Require(bool condition, absl::string_view what) {
    if (condition || !failure_.empty()) return;
    failure_ =
        absl::StrCat(what, " at ", absl::ToInt64Milliseconds(now_ - absl::UnixEpoch()), " ms");
  }
  void Note(uint64_t kind, uint64_t id) {
    const uint64_t at = static_cast<uint64_t>(absl::ToUnixMillis(now_));
    history = (history ^ (at * 8 + kind) ^ (id << 32)) * 0x9E3779B97F4A7C15u;
  }
  // The byte at `i` of one cell of one sequence: a function of what it stands for.
  static std::byte CellByte(uint64_t sequence, int ordinal, int layer, size_t i) {
    return static_cast<std::byte>((sequence * 131 + ordinal * 29 + layer * 7 + i * 3 + 1) & 0xFF);
  }
  bool Quiet() const {
    for (const auto& side : sides_) {
      const transfer::TransferCounters counters = side->endpoint->counters();
      if (counters.sends_in_flight + counters.receives_in_flight > 0) return false;
    }
    return leases_.empty() && exports_.empty() && network_.idle();
  }
  KvTransferSide& AnySide() { return *sides_[random_->Below(sides_.size())]; }
  absl::Time Soon() {
    return now_ + absl::Milliseconds(300 + static_cast<int64_t>(random_->Below(300)));
  }
  template <typename Map>
  typename Map::key_type Pick(const Map& map) {
    return std::next(map.begin(), static_cast<ptrdiff_t>(random_->Below(map.size())))->first;
  }

  std::vector<BlockId> Take(KvTransferSide& side, size_t count);
  void Give(KvTransferSide& side, const std::vector<BlockId>& blocks);
  void StartLease();
  // A sender for the lease's current epoch that has everything from `skip` blocks on.
  void StartExport(LeaseId id, size_t skip);
  // Cached blocks whole, then chunks layer by layer.
  void PlanPushes(transfer::ExportId id, ExportRecord& exported);
  void Disturb();
  void Close(LeaseId id);
  void Raise(LeaseId id);
  // The first `blocks` blocks hold the sequence's bytes, no matter which node sent them.
  void RequireContent(const KvTransferSide& side, const LeaseRecord& lease, size_t blocks);
  void Push();
  void Step();

  void On(KvTransferSide& side, const transfer::LeaseInstalled& event);
  void On(KvTransferSide& side, const transfer::LeaseFailed& event);
  void On(KvTransferSide& side, const transfer::EpochRaised& event);
  void On(KvTransferSide& side, const transfer::LeaseDrained& event);
  void On(KvTransferSide& side, const transfer::ExportDone& event);
  void On(KvTransferSide& side, const transfer::ExportFailed& event);
  void EndExport(KvTransferSide& side, transfer::ExportId id);

  FaultyNetwork network_;
  std::optional<LoopbackChannels> channels_;
  KvTransferClock clock_;
  std::unique_ptr<Random> random_;
  Stranger stranger_;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<std::unique_ptr<KvTransferSide>> sides_;
  std::map<LeaseId, LeaseRecord> leases_;
  std::map<transfer::ExportId, ExportRecord> exports_;
  uint64_t next_id_ = 1;
  std::string failure_;
};

inline std::vector<BlockId> KvTransferWorld::Take(KvTransferSide& side, size_t count) {
  std::vector<BlockId> blocks;
  while (blocks.size() < count && !side.free.empty()) {
    const size_t i = random_->Below(side.free.size());
    Require(side.Holds(side.free[i], KvTransferSide::kFree), "a byte landed in a free block");
    blocks.push_back(side.free[i]);
    side.free.erase(side.free.begin() + static_cast<ptrdiff_t>(i));
  }
  return blocks;
}

inline void KvTransferWorld::Give(KvTransferSide& side, const std::vector<BlockId>& blocks) {
  for (const BlockId block : blocks) {
    side.Fill(block, KvTransferSide::kFree);
    side.free.push_back(block);
  }
}

inline void KvTransferWorld::StartLease() {
  KvTransferSide& receiver = AnySide();
  LeaseRecord lease;
  lease.receiver = &receiver;
  lease.blocks = Take(receiver, 1 + random_->Below(6));
  if (lease.blocks.empty()) return;
  for (const BlockId block : lease.blocks) receiver.Fill(block, KvTransferSide::kLeased);
  const LeaseId id(next_id_++);
  lease.sequence = id.value();
  lease.epoch = Epoch(1);
  lease.first_ordinal = static_cast<int>(random_->Below(5));
  receiver.endpoint->Handle(
      transfer::OpenLease{id, lease.epoch, lease.first_ordinal, lease.blocks, Soon()}, now_);
  leases_[id] = lease;
  StartExport(id, 0);
}

inline void KvTransferWorld::StartExport(LeaseId id, size_t skip) {
  const LeaseRecord& lease = leases_[id];
  KvTransferSide* sender = &AnySide();
  // The next one, where the receiver itself was drawn.
  if (sender == lease.receiver) {
    sender = sides_[(sender->incarnation.value() - 100 + 1 + random_->Below(2)) % 3].get();
  }
  if (skip >= lease.blocks.size()) skip = 0;
  ExportRecord exported;
  exported.sender = sender;
  exported.first_ordinal = lease.first_ordinal + static_cast<int>(skip);
  exported.blocks = Take(*sender, lease.blocks.size() - skip);
  if (exported.blocks.size() != lease.blocks.size() - skip) {
    Give(*sender, exported.blocks);
    return;  // the lease's deadline ends this epoch
  }
  for (size_t b = 0; b < exported.blocks.size(); ++b) {
    for (int layer = 0; layer < KvTransferSide::kLayers; ++layer) {
      const absl::Span<std::byte> cell = sender->Cell(layer, exported.blocks[b]);
      for (size_t i = 0; i < cell.size(); ++i) {
        cell[i] = CellByte(lease.sequence, exported.first_ordinal + static_cast<int>(b), layer, i);
      }
    }
  }
  const transfer::ExportId export_id(next_id_++);
  PlanPushes(export_id, exported);
  sender->endpoint->Handle(
      transfer::OpenExport{export_id,
                           transfer::PeerAddress{NodeId("receiver"), lease.receiver->incarnation,
                                                 lease.receiver->transport->address(), "host"},
                           id, lease.epoch, exported.first_ordinal, exported.blocks, Soon()},
      now_);
  exports_[export_id] = std::move(exported);
}

inline void KvTransferWorld::PlanPushes(transfer::ExportId id, ExportRecord& exported) {
  const int count = static_cast<int>(exported.blocks.size());
  int at = static_cast<int>(random_->Below(static_cast<uint64_t>(count) + 1));
  if (at > 0)
    exported.pushes.push_back({id, exported.first_ordinal, at, 0, KvTransferSide::kLayers});
  while (at < count) {
    const int chunk = 1 + static_cast<int>(random_->Below(static_cast<uint64_t>(count - at)));
    for (int layer = 0; layer < KvTransferSide::kLayers; ++layer) {
      exported.pushes.push_back({id, exported.first_ordinal + at, chunk, layer, 1});
    }
    at += chunk;
  }
}

inline void KvTransferWorld::Disturb() {
  if (!leases_.empty() && random_->Below(12) == 0) Close(Pick(leases_));
  if (!leases_.empty() && random_->Below(12) == 0) Raise(Pick(leases_));
  if (!exports_.empty() && random_->Below(12) == 0) {
    const transfer::ExportId id = Pick(exports_);
    exports_[id].sender->endpoint->Handle(transfer::CancelExport{id, "random cancel"}, now_);
  }
  if (random_->Below(60) == 0) {
    const size_t a = random_->Below(3);
    network_.Break(*sides_[a]->wire, *sides_[(a + 1) % 3]->wire);
  }
}

inline void KvTransferWorld::Close(LeaseId id) {
  LeaseRecord& lease = leases_[id];
  if (lease.closing) return;  // each close is answered once; one is enough to know
  lease.closing = true;
  lease.receiver->endpoint->Handle(transfer::CloseLease{id, "random close"}, now_);
}

inline void KvTransferWorld::Raise(LeaseId id) {
  LeaseRecord& lease = leases_[id];
  if (lease.closing) return;
  lease.epoch = Epoch(lease.epoch.value() + 1);
  lease.failed = false;
  lease.receiver->endpoint->Handle(transfer::RaiseEpoch{id, lease.epoch, Soon()}, now_);
}

inline void KvTransferWorld::RequireContent(const KvTransferSide& side, const LeaseRecord& lease,
                                            size_t blocks) {
  for (size_t b = 0; b < blocks; ++b) {
    for (int layer = 0; layer < KvTransferSide::kLayers; ++layer) {
      const absl::Span<std::byte> cell = side.Cell(layer, lease.blocks[b]);
      for (size_t i = 0; i < cell.size(); ++i) {
        Require(cell[i] ==
                    CellByte(lease.sequence, lease.first_ordinal + static_cast<int>(b), layer, i),
                "what was installed or verified is not what was sent");
      }
    }
  }
}

inline void KvTransferWorld::Push() {
  for (auto& [id, exported] : exports_) {
    if (exported.finished || random_->Below(2) == 0) continue;
    if (!exported.pushes.empty()) {
      exported.sender->endpoint->Handle(exported.pushes.front(), now_);
      exported.pushes.erase(exported.pushes.begin());
      continue;
    }
    v1::GeneratedToken token;
    token.set_token_id(static_cast<int>(id.value()));
    exported.sender->endpoint->Handle(transfer::FinishExport{id, token, {}}, now_);
    exported.finished = true;
  }
}

inline void KvTransferWorld::Step() {
  now_ += absl::Milliseconds(1);
  clock_.now = now_;
  Push();
  if (stranger_) stranger_(*this);
  network_.Step();
  for (const auto& side : sides_) {
    side->transport->Progress();
    side->endpoint->Tick(now_);
    for (const transfer::TransferEvent& event : side->endpoint->TakeEvents()) {
      std::visit([&](const auto& typed) { On(*side, typed); }, event);
    }
  }
}

inline void KvTransferWorld::On(KvTransferSide& side, const transfer::LeaseInstalled& event) {
  Note(1, event.lease.value());
  const auto it = leases_.find(event.lease);
  if (it == leases_.end()) return Require(false, "installed twice, or after the drain");
  const LeaseRecord& lease = it->second;
  Require(lease.receiver == &side, "installed at another node");
  Require(event.epoch == lease.epoch, "installed by a stale epoch");
  RequireContent(side, lease, lease.blocks.size());
  ++installed;
  if (lease.closing) return;  // the close raced with this; its LeaseDrained ends the record
  Give(side, lease.blocks);
  leases_.erase(it);
}

inline void KvTransferWorld::On(KvTransferSide&, const transfer::LeaseFailed& event) {
  Note(2, event.lease.value());
  const auto it = leases_.find(event.lease);
  if (it == leases_.end()) return Require(false, "a lease failed that is over");
  LeaseRecord& lease = it->second;
  if (event.epoch != lease.epoch) return;  // raised meanwhile
  Require(!lease.failed, "an epoch failed twice");
  lease.failed = true;
  ++leases_failed;
  if (lease.give_up || random_->Below(2) == 0) {
    Close(event.lease);
  } else {
    Raise(event.lease);
  }
}

// Another sender continues behind the verified blocks; or none does, and they stay as they are.
inline void KvTransferWorld::On(KvTransferSide& side, const transfer::EpochRaised& event) {
  Note(6, event.lease.value());
  const auto it = leases_.find(event.lease);
  if (it == leases_.end()) return Require(false, "an epoch was raised of a lease that is over");
  LeaseRecord& lease = it->second;
  if (event.epoch != lease.epoch || lease.closing) return;
  lease.verified = static_cast<size_t>(event.verified_blocks);
  if (lease.verified > lease.blocks.size()) return Require(false, "more verified than there is");
  verified += event.verified_blocks;
  RequireContent(side, lease, lease.verified);
  if (random_->Below(4) == 0) {
    Close(event.lease);
  } else {
    StartExport(event.lease, lease.verified);
  }
}

inline void KvTransferWorld::On(KvTransferSide& side, const transfer::LeaseDrained& event) {
  Note(3, event.lease.value());
  const auto it = leases_.find(event.lease);
  if (it == leases_.end()) return Require(false, "drained twice");
  Require(it->second.closing, "drained without a close");
  RequireContent(side, it->second, it->second.verified);
  Give(side, it->second.blocks);
  leases_.erase(it);
  ++drained;
}

inline void KvTransferWorld::On(KvTransferSide& side, const transfer::ExportDone& event) {
  Note(4, event.export_id.value());
  EndExport(side, event.export_id);
}

inline void KvTransferWorld::On(KvTransferSide& side, const transfer::ExportFailed& event) {
  Note(5, event.export_id.value());
  ++exports_failed;
  EndExport(side, event.export_id);
}

inline void KvTransferWorld::EndExport(KvTransferSide& side, transfer::ExportId id) {
  const auto it = exports_.find(id);
  if (it == exports_.end()) return Require(false, "an export ended twice");
  // Reused at once: a frame still reading them would be found out by its checksum and content.
  for (const BlockId block : it->second.blocks) side.Fill(block, KvTransferSide::kReused);
  Give(side, it->second.blocks);
  exports_.erase(it);
}

}  // namespace tandem::testing
