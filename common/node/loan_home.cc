#include "common/node/loan_home.h"

#include <utility>

#include "common/base/check.h"
#include "common/cost/loan_time.h"
#include "common/telemetry/log.h"

namespace tandem::node {

void LoanHome::Begin(RouterKey router, const lending::CreditorAddress& creditor, Units units,
                     absl::Time now) {
  TANDEM_CHECK(idle(), "loan ", units.loan.value(), " comes home beside another");
  const auto count = std::ssize(units.hashes);
  auto blocks = scheduler_.pool().Allocate(count);
  TANDEM_CHECK(blocks.ok(), "loan ", units.loan.value(), ": ", blocks.status().ToString());
  blocks_ = *std::move(blocks);
  lease_ = ledger_.NewLease();
  const int64_t bytes = count * scheduler_.spec().layout.block_bytes();
  ledger_.Transfer(transfer::OpenLease{.lease = lease_,
                                       .epoch = Epoch(1),
                                       .first_ordinal = 0,
                                       .blocks = blocks_,
                                       .deadline = now + kTimeMax + cost::LoanBytesTime(bytes),
                                       .window_first_ordinal = static_cast<int32_t>(count)});
  v1::NodeEvent event;
  v1::BlocksWanted& ask = *event.mutable_blocks_wanted();
  ask.set_from_node_id(creditor.node.value());
  ask.set_from_incarnation(creditor.incarnation.value());
  ask.set_lease_id(lease_.value());
  ask.set_epoch(1);
  ask.set_hashes(kv::PackHashes(units.hashes));
  ask.set_fetch(true);
  ask.set_lent(true);
  units_ = std::move(units);
  ledger_.Send(router, std::move(event));
}

std::vector<BlockId> LoanHome::Take() {
  TANDEM_CHECK(ready_);
  ready_ = false;
  units_.reset();
  return std::exchange(blocks_, {});
}

void LoanHome::Drop(const std::string& why) {
  if (!units_.has_value()) return;
  Log(LogLevel::kInfo, "a loan did not come home", {{"loan", units_->loan.value()}, {"why", why}});
  units_.reset();
  if (std::exchange(ready_, false)) {
    // Leaves first, so that a prefix stays in the cache longer than what follows it.
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block)
      scheduler_.pool().Unref(*block);
    blocks_.clear();
    return;
  }
  quarantined_ = std::exchange(blocks_, {});
  for (const BlockId block : quarantined_) scheduler_.pool().Quarantine(block);
  ledger_.Transfer(transfer::CloseLease{.lease = lease_, .reason = why});
}

void LoanHome::Handle(const transfer::LeaseInstalled& event) {
  if (!units_.has_value() || ready_ || event.lease != lease_) return;
  // When this node has computed an equal block meanwhile, the received one stays unsealed.
  for (size_t i = 0; i < blocks_.size(); ++i)
    scheduler_.pool().Seal(blocks_[i], units_->hashes[i], kv::ParentOf(units_->hashes, i));
  ready_ = true;
  v1::NodeCounters& counters = ledger_.counters();
  counters.set_kv_bytes_received(counters.kv_bytes_received() + event.bytes_received);
}

bool LoanHome::Handle(const transfer::LeaseFailed& event) {
  if (!units_.has_value() || ready_ || event.lease != lease_) return false;
  Drop(event.status.ToString());
  return true;
}

bool LoanHome::OnNoHolder(LeaseId lease) {
  if (!units_.has_value() || ready_ || lease != lease_) return false;
  Drop("the creditor has left the fleet");
  return true;
}

void LoanHome::Handle(const transfer::LeaseDrained& event) {
  if (quarantined_.empty() || event.lease != lease_) return;
  scheduler_.EndQuarantine(quarantined_);
  quarantined_.clear();
}

}  // namespace tandem::node
