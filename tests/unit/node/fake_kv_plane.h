// A KV plane between one prefill node's arena and one decode node's, for tests: copies blocks when
// the test says so, as late as the contract of common/transfer/kv_transfer.h allows, and scribbles
// over a closing lease's blocks until it reports them drained. Thread safety: none.
#pragma once

#include <cstring>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/kv/block_arena.h"
#include "common/transfer/kv_transfer.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {

class FakeKvPlane {
 public:
  FakeKvPlane(kv::BlockArena& sender, kv::BlockArena& receiver, std::mt19937_64& random)
      : sender_(sender), receiver_(receiver), random_(random) {}

  void Handle(const transfer::TransferCommand& command) {
    std::visit([this](const auto& c) { Handle(c); }, command);
  }

  // Moves everything on that is due with probability 1 in `lateness`.
  void Progress(int lateness) {
    for (auto& [id, exported] : exports_) {
      while (!exported.pushes.empty() && Chance(lateness)) {
        Copy(exported, exported.pushes.front());
        exported.pushes.erase(exported.pushes.begin());
      }
    }
    for (auto it = exports_.begin(); it != exports_.end();) {
      const auto current = it++;
      if (Chance(lateness)) MaybeEnd(current);
    }
    for (auto it = closing_.begin(); it != closing_.end();) {
      const auto current = it++;
      for (const BlockId block : current->second) Scribble(block);  // not what was verified
      if (!Chance(lateness)) continue;
      to_receiver.push_back(transfer::LeaseDrained{current->first});
      closing_.erase(current);
    }
  }

  // Faults: the connection breaks, as seen by either side.
  void FailSomeExport() {
    if (exports_.empty()) return;
    const auto it = exports_.begin();
    to_sender.push_back(
        transfer::ExportFailed{it->first, absl::UnavailableError("connection lost")});
    exports_.erase(it);
  }
  void FailSomeLease() {
    if (leases_.empty()) return;
    auto& [id, lease] = *leases_.begin();
    if (std::exchange(lease.failed, true)) return;
    to_receiver.push_back(
        transfer::LeaseFailed{id, lease.epoch, absl::UnavailableError("sender lost")});
  }
  bool idle() const { return leases_.empty() && exports_.empty() && closing_.empty(); }

  std::vector<transfer::TransferEvent> to_sender, to_receiver;
  int64_t bytes_copied = 0;
  int64_t blocks_verified = 0;  // by next epochs

 private:
  struct Lease {
    Epoch epoch;
    int32_t first_ordinal = 0;
    std::vector<BlockId> blocks;
    std::set<std::pair<int32_t, int32_t>> filled;  // (ordinal, layer)
    bool failed = false;
    size_t verified = 0;  // blocks, as told
  };
  struct Export {
    LeaseId lease;
    Epoch epoch;
    int32_t first_ordinal = 0;
    std::vector<BlockId> blocks;
    std::vector<transfer::PushRange> pushes;
    std::set<std::pair<int32_t, int32_t>> announced;
    std::optional<v1::GeneratedToken> first_token;
    bool cancelled = false;
  };

  bool Chance(int one_in) { return random_() % one_in == 0; }

  void Handle(const transfer::OpenLease& c) {
    ASSERT_FALSE(c.blocks.empty());
    ASSERT_TRUE(leases_.try_emplace(c.lease, Lease{c.epoch, c.first_ordinal, c.blocks}).second);
  }
  void Handle(const transfer::RaiseEpoch& c) {
    const auto it = leases_.find(c.lease);
    if (it == leases_.end()) return;
    ASSERT_GT(c.epoch.value(), it->second.epoch.value());
    Lease& lease = it->second;
    lease.epoch = c.epoch;
    lease.failed = false;
    lease.verified = 0;
    const auto whole = [&](size_t block) {
      for (int l = 0; l < receiver_.layout().num_layers; ++l)
        if (lease.filled.count({lease.first_ordinal + static_cast<int32_t>(block), l}) == 0)
          return false;
      return true;
    };
    while (lease.verified < lease.blocks.size() && whole(lease.verified)) ++lease.verified;
    blocks_verified += static_cast<int64_t>(lease.verified);
    to_receiver.push_back(
        transfer::EpochRaised{.lease = c.lease,
                              .epoch = c.epoch,
                              .verified_blocks = static_cast<int32_t>(lease.verified)});
  }
  void Handle(const transfer::CloseLease& c) {
    const auto it = leases_.find(c.lease);
    std::vector<BlockId>& closing = closing_[c.lease];
    if (it == leases_.end()) return;
    const Lease& lease = it->second;
    closing.assign(lease.blocks.begin() + static_cast<ptrdiff_t>(lease.verified),
                   lease.blocks.end());
    leases_.erase(it);
  }
  void Handle(const transfer::OpenExport& c) {
    ASSERT_TRUE(
        exports_.try_emplace(c.export_id, Export{c.lease, c.epoch, c.first_ordinal, c.blocks})
            .second);
  }
  void Handle(const transfer::PushRange& c) {
    const auto it = exports_.find(c.export_id);
    if (it == exports_.end()) return;  // failed a moment ago
    ASSERT_FALSE(it->second.cancelled) << "pushed after CancelExport";
    for (int32_t o = c.first_ordinal; o < c.first_ordinal + c.ordinal_count; ++o) {
      for (int32_t l = c.first_layer; l < c.first_layer + c.layer_count; ++l) {
        ASSERT_TRUE(it->second.announced.emplace(o, l).second) << "pushed twice";
      }
    }
    it->second.pushes.push_back(c);
  }
  void Handle(const transfer::FinishExport& c) {
    const auto it = exports_.find(c.export_id);
    if (it == exports_.end()) return;
    ASSERT_EQ(it->second.announced.size(), it->second.blocks.size() * sender_.layout().num_layers);
    it->second.first_token = c.first_token;
  }
  void Handle(const transfer::CancelExport& c) {
    const auto it = exports_.find(c.export_id);
    if (it != exports_.end()) it->second.cancelled = true;
  }

  void Copy(const Export& exported, const transfer::PushRange& push) {
    const auto it = leases_.find(exported.lease);
    if (it == leases_.end() || it->second.epoch != exported.epoch) return;  // stale
    Lease& lease = it->second;
    for (int32_t o = push.first_ordinal; o < push.first_ordinal + push.ordinal_count; ++o) {
      for (int32_t l = push.first_layer; l < push.first_layer + push.layer_count; ++l) {
        if (!lease.filled.emplace(o, l).second) continue;
        const auto from = sender_.Block(l, exported.blocks.at(o - exported.first_ordinal));
        const auto to = receiver_.Block(l, lease.blocks.at(o - lease.first_ordinal));
        std::memcpy(to.data(), from.data(), from.size());
        bytes_copied += static_cast<int64_t>(from.size());
      }
    }
  }

  void MaybeEnd(std::map<transfer::ExportId, Export>::iterator it) {
    const Export& exported = it->second;
    const transfer::ExportId id = it->first;
    if (exported.cancelled) {
      to_sender.push_back(transfer::ExportFailed{id, absl::CancelledError("cancelled")});
      exports_.erase(it);
      return;
    }
    const auto lease = leases_.find(exported.lease);
    if (lease == leases_.end() || lease->second.epoch != exported.epoch) {
      to_sender.push_back(transfer::ExportFailed{id, absl::FailedPreconditionError("stale epoch")});
      exports_.erase(it);
      return;
    }
    if (!exported.pushes.empty() || !exported.first_token.has_value()) return;
    const int64_t bytes =
        static_cast<int64_t>(lease->second.blocks.size()) * receiver_.layout().block_bytes();
    to_receiver.push_back(transfer::LeaseInstalled{.lease = exported.lease,
                                                   .epoch = exported.epoch,
                                                   .first_token = *exported.first_token,
                                                   .bytes_received = bytes,
                                                   .transfer_time = absl::Milliseconds(2),
                                                   .receive_time = absl::Milliseconds(1),
                                                   .transport = "fake"});
    to_sender.push_back(transfer::ExportDone{.export_id = id, .bytes_sent = bytes});
    leases_.erase(lease);
    exports_.erase(it);
  }

  // What a send in flight may still do to a lease that is not drained.
  void Scribble(BlockId block) {
    for (int l = 0; l < receiver_.layout().num_layers; ++l) {
      const auto bytes = receiver_.Block(l, block);
      std::memset(bytes.data(), static_cast<int>(random_() & 0xff), bytes.size());
    }
  }

  kv::BlockArena& sender_;
  kv::BlockArena& receiver_;
  std::mt19937_64& random_;
  std::map<LeaseId, Lease> leases_;
  std::map<transfer::ExportId, Export> exports_;
  std::map<LeaseId, std::vector<BlockId>> closing_;
};

}  // namespace tandem::node
