// Checks that each KV block of one process has one owner, and that bytes of peers land only where a
// lease of the current epoch allows it. The checker observes the calls between core, KV plane,
// transport and engine, and tracks leases and exports itself:
//   issued     the core's command leaves the engine thread: blocks change hands
//   handled    the KV plane acts on it: epochs and closings hold from here on
//   emitted    the KV plane's event leaves it: from here on no byte may land
//   delivered  the core gets the event: blocks change hands back
// Thread safety: none; the simulation's thread. Owner: a SimNode.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/engine.h"
#include "common/transfer/kv_transfer.h"
#include "sim/world/violations.h"
#include "sim/world/virtual_network.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::sim {

// How many leases and exports are in each state.
struct KvTransferStates {
  int64_t reserved = 0, filling = 0, draining = 0;
  int64_t planned = 0, pushing = 0, finished = 0, cancelled = 0;
};

class OwnershipChecker final : public LandingObserver {
 public:
  OwnershipChecker(RunLog& log, std::string node, kv::BlockLayout layout)
      : log_(log), node_(std::move(node)), layout_(std::move(layout)) {}

  void OnIssued(const transfer::TransferCommand& command);
  void OnHandled(const transfer::TransferCommand& command);
  void OnEmitted(const transfer::TransferEvent& event);
  void OnDelivered(const transfer::TransferEvent& event);
  // The slices of a step that is about to be computed.
  void OnStep(absl::Span<const engine::SequenceSlice> slices);
  void OnLoad(const v1::NodeLoad& load);

  void OnAdmitted(const v1::KvFrame& frame, uint64_t receive_id) override;
  void OnLanding(uint64_t receive_id, bool intact) override;
  void OnReceiveEnded(uint64_t receive_id) override;

  KvTransferStates states() const;

 private:
  struct Lease {
    int32_t first_ordinal = 0, window_first_ordinal = 0;
    std::vector<BlockId> blocks;
    Epoch epoch;           // as handled
    bool closing = false;  // as issued
    bool open = false, closed = false, ended = false;
    bool landed = false;
    // (ordinal, layer) holding what was sent, and what was not.
    std::set<std::pair<int32_t, int32_t>> intact, damaged;
    int32_t verified = 0;  // blocks in which no further byte may land
  };
  struct Export {
    int32_t first_ordinal = 0;
    std::vector<BlockId> blocks;
    std::set<BlockId> pushed;
    bool finished = false, cancelled = false;
  };
  struct Receive {
    LeaseId lease;
    int32_t first_ordinal = 0, ordinal_count = 0, first_layer = 0, layer_count = 0;
    bool Overlaps(const Receive& other) const;
  };

  void Violate(std::string what) { log_.Violate("ownership", absl::StrCat(node_, ": ", what)); }
  void CheckWritten(BlockId block, std::set<BlockId>& written);
  void OnRaised(const transfer::EpochRaised& event);

  void Issued(const transfer::OpenLease& command);
  void Issued(const transfer::OpenExport& command);
  void Issued(const transfer::PushRange& command);
  void Issued(const transfer::FinishExport& command);
  void Issued(const transfer::CancelExport& command);
  void Issued(const transfer::CloseLease& command);
  template <typename Other>
  void Issued(const Other&) {}

  RunLog& log_;
  const std::string node_;
  const kv::BlockLayout layout_;
  std::map<LeaseId, Lease> leases_;
  std::map<BlockId, LeaseId> leased_;
  std::map<transfer::ExportId, Export> exports_;
  std::map<uint64_t, Receive> receives_;
};

}  // namespace tandem::sim
