// A KV plane that moves no bytes: it says when a transfer would have ended. A node sends and
// receives one range at a time, at the network's rate; a range waits for both ends. Leases, epochs
// and exports live and end as kv_transfer.h says, without faults of the network.
//
//   range pushed ─▶ waits for sender and receiver ─▶ bytes / rate ─▶ through
//   FinishExport, all ranges through ─▶ latency ─▶ LeaseInstalled ─▶ latency ─▶ ExportDone
//
// Thread safety: none; the simulation's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "sim/kv_plane.h"
#include "sim/node_seams.h"

namespace tandem::sim {

struct LinkOptions {
  double bytes_per_second = 0;  // of each node, in each direction
  absl::Duration latency;       // one way
};

class TimedPlane;

// The planes that reach each other. Owner: the simulation; outlives its planes.
class TimedNetwork {
 public:
  explicit TimedNetwork(const LinkOptions& options) : options_(options) {}
  const LinkOptions& options() const { return options_; }

 private:
  friend class TimedPlane;
  const LinkOptions options_;
  // Bound: the processes that run.
  absl::flat_hash_map<std::string, TimedPlane*> planes_;
};

class TimedPlane final : public KvPlane {
 public:
  // `network` and what `site` names outlive the plane.
  TimedPlane(TimedNetwork& network, KvPlaneSite site);
  ~TimedPlane() override;

  const std::string& address() const override { return address_; }
  void Handle(const transfer::TransferCommand& command, absl::Time now) override;
  void Tick(absl::Time now) override;
  std::vector<transfer::TransferEvent> TakeEvents() override;
  transfer::TransferCounters counters() const override { return counters_; }

 private:
  struct Lease {
    Epoch epoch;
    absl::Time deadline;
    bool failed = false;  // in this epoch
  };
  struct Export {
    std::string receiver;  // its address
    LeaseId lease;
    Epoch epoch;
    absl::Time deadline;
    int64_t bytes = 0;
    absl::Time first_push = absl::InfiniteFuture();
    absl::Time stretch_began = absl::InfinitePast();  // as transfer::ExportDone::last_stretch
    int64_t bytes_before_stretch = 0;
    absl::Time through = absl::InfinitePast();  // when the last range is
    absl::Duration on_wire;
    transfer::FinishExport finish;  // once asked for
    bool finished = false;
  };

  void Do(const transfer::OpenLease& command);
  void Do(const transfer::RaiseEpoch& command);
  void Do(const transfer::CloseLease& command);
  void Do(const transfer::OpenExport& command);
  void Do(const transfer::PushRange& command);
  void Do(const transfer::FinishExport& command);
  void Do(const transfer::CancelExport& command);
  // At the receiver. Whether the lease took the export.
  bool Install(const Export& sent, absl::Time now);
  // At the sender: all bytes and FIN have arrived.
  void Deliver(transfer::ExportId id);
  void FailExport(transfer::ExportId id, const absl::Status& status);
  void FailLease(LeaseId id, Epoch epoch, const absl::Status& status);
  TimedPlane* Find(const std::string& address) const;
  void Emit(transfer::TransferEvent event);

  TimedNetwork& network_;
  const KvPlaneSite site_;
  const std::string address_;
  const int64_t block_bytes_;
  absl::Time now_;
  absl::Time sending_until_ = absl::InfinitePast(), receiving_until_ = absl::InfinitePast();
  // Bound: the sequences of the node's scheduler, and its fetches.
  absl::btree_map<LeaseId, Lease> leases_;
  // Bound: as leases_.
  absl::btree_map<transfer::ExportId, Export> exports_;
  // Bound: what TakeEvents has not taken; it is called after each event.
  std::vector<transfer::TransferEvent> events_;
  transfer::TransferCounters counters_;
};

}  // namespace tandem::sim
