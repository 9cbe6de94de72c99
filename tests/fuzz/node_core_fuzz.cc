// Goal: no order of commands, however wrong, of engine steps that succeed or fail, and of events of
// KV transfers and loans crashes a decode or a prefill node's core, makes it break the contract of
// either, or leaves anything behind when its routers are gone. Input: one byte a choice, in the
// order in which the choices come up.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <set>

#include "common/engine/hash/hash_engine.h"
#include "common/telemetry/log.h"
#include "decode_node/decode_core.h"
#include "prefill_node/prefill_core.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/fuzz/odd_commands.h"

namespace tandem::node {
namespace {

constexpr int kBlocks = 12, kBlockTokens = 16;
constexpr uint64_t kRouters = 2;

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// Answers a core's commands within the contract of common/transfer/kv_transfer.h; the choices
// decide when and how.
class ChoosingKvPlane {
 public:
  ChoosingKvPlane(fuzz::OddCommands& odd, Random& random) : odd_(odd), random_(random) {}

  void Handle(const transfer::TransferCommand& command) {
    std::visit([this](const auto& typed) { On(typed); }, command);
  }
  bool idle() const { return leases_.empty() && closing_.empty() && exports_.empty(); }
  // Makes one thing happen that may happen now. `ending`: only things that end what is under way.
  std::optional<transfer::TransferEvent> Next(bool ending) {
    if (!closing_.empty() && (ending || random_.Below(2) == 0)) {
      const LeaseId id = *closing_.begin();
      closing_.erase(closing_.begin());
      return transfer::LeaseDrained{id};
    }
    if (!exports_.empty() && (ending || random_.Below(2) == 0)) {
      const auto [id, finished] = *exports_.begin();
      exports_.erase(exports_.begin());
      if (finished && random_.Below(2) == 0) return transfer::ExportDone{id, 100, {}};
      return transfer::ExportFailed{id, absl::UnavailableError("chosen")};
    }
    if (!raised_.empty() && (ending || random_.Below(2) == 0)) {
      const transfer::EpochRaised raised = raised_.front();
      raised_.pop_front();
      return raised;
    }
    if (ending) return PassDeadline();
    if (leases_.empty()) return std::nullopt;
    auto& [id, lease] = *leases_.begin();
    if (random_.Below(3) == 0 && !std::exchange(lease.failed, true)) {
      return transfer::LeaseFailed{id, lease.epoch, absl::AbortedError("chosen")};
    }
    if (lease.failed) return std::nullopt;
    transfer::LeaseInstalled installed{.lease = id, .epoch = lease.epoch, .transport = "chosen"};
    installed.first_token.set_token_id(odd_.Int(40));
    installed.first_token.set_index(odd_.Int(3));
    // Of a split prompt: mostly units that follow each other.
    int32_t next = 0;
    for (uint64_t i = random_.Below(4); i > 0; --i) {
      v1::KvLoan& loan = installed.loans.emplace_back();
      loan.set_first_unit(random_.Below(8) == 0 ? odd_.Int(4) : next);
      loan.set_units(random_.Below(8) == 0 ? odd_.Int(4) : 1);
      loan.set_creditor_node_id(random_.Below(8) == 0 ? "" : "c");
      next += 1;
    }
    leases_.erase(leases_.begin());
    return installed;
  }

 private:
  struct Lease {
    Epoch epoch;
    uint64_t blocks = 0;
    bool failed = false;
  };
  std::optional<transfer::TransferEvent> PassDeadline() {
    for (auto& [id, lease] : leases_)
      if (!std::exchange(lease.failed, true))
        return transfer::LeaseFailed{id, lease.epoch, absl::DeadlineExceededError("chosen")};
    return std::nullopt;
  }
  void On(const transfer::OpenLease& command) {
    if (command.blocks.empty()) Die("a lease without blocks");
    const Lease lease{command.epoch, command.blocks.size()};
    if (!leases_.try_emplace(command.lease, lease).second) Die("a lease was opened twice");
  }
  void On(const transfer::RaiseEpoch& command) {
    const auto it = leases_.find(command.lease);
    if (it == leases_.end()) return;
    if (!(it->second.epoch < command.epoch)) Die("an epoch went back");
    it->second = {command.epoch, it->second.blocks};
    const auto verified = static_cast<int32_t>(random_.Below(it->second.blocks + 1));
    raised_.push_back({command.lease, command.epoch, verified});
  }
  void On(const transfer::CloseLease& command) {
    leases_.erase(command.lease);
    if (!closing_.insert(command.lease).second) Die("a lease was closed twice");
  }
  void On(const transfer::OpenExport& command) {
    if (!exports_.try_emplace(command.export_id, false).second) Die("an export was opened twice");
  }
  void On(const transfer::PushRange& command) {
    const auto it = exports_.find(command.export_id);
    if (it != exports_.end() && it->second) Die("pushed after FinishExport");
  }
  void On(const transfer::FinishExport& command) {
    const auto it = exports_.find(command.export_id);
    if (it != exports_.end()) it->second = true;
  }
  void On(const transfer::CancelExport&) {}  // ExportFailed comes when it comes

  fuzz::OddCommands& odd_;
  Random& random_;
  std::map<LeaseId, Lease> leases_;
  std::set<LeaseId> closing_;
  std::deque<transfer::EpochRaised> raised_;    // events on their way
  std::map<transfer::ExportId, bool> exports_;  // finished
};

// Holds a core to common/lending/lending.h; the choices decide what becomes of loans, and whether
// creditors answer.
class ChoosingLendingPlane final : public engine::RemoteAttention {
 public:
  explicit ChoosingLendingPlane(Random& random) : random_(random) {}

  void Handle(const lending::LendingCommand& command) {
    std::visit([this](const auto& typed) { On(typed); }, command);
  }
  bool idle() const { return served_.empty() && used_.empty(); }
  // As ChoosingKvPlane::Next.
  std::optional<lending::LendingEvent> Next(bool ending) {
    if (!served_.empty() && (ending || random_.Below(2) == 0)) {
      const lending::LoanKey key = *served_.begin();
      if (random_.Below(3) == 0) return lending::LoanReturned{key};
      if (random_.Below(3) == 0) return lending::LoanDamaged{key};
      return lending::LoanExpired{key};
    }
    if (!late_.empty() && (ending || random_.Below(2) == 0)) {
      const auto [loan, creditor] = *late_.begin();
      if (!ending && random_.Below(3) == 0) return lending::CreditorLate{creditor};
      late_.erase(late_.begin());
      if (random_.Below(3) == 0)
        return lending::LoanLost{loan, absl::DeadlineExceededError("chosen")};
      return lending::CreditorAnswers{creditor};
    }
    if (used_.empty() || ending) return std::nullopt;
    if (random_.Below(2) == 0) return lending::LoanRecalled{used_.begin()->first};
    return lending::LoanLost{used_.rbegin()->first, random_.Below(4) == 0
                                                        ? absl::DataLossError("chosen")
                                                        : absl::UnavailableError("chosen")};
  }
  void Ask(absl::Span<engine::RemotePart>) override {}
  void Collect(absl::Span<engine::RemotePart> parts) override {
    for (engine::RemotePart& part : parts) {
      if (!used_.contains(part.lent.loan)) Die("a question about a loan that is not used");
      if (random_.Below(4) == 0) part.status = absl::UnavailableError("chosen");
      if (random_.Below(4) != 0 && !late_.contains(part.lent.loan)) continue;
      part.status = absl::DeadlineExceededError("chosen");
      late_[part.lent.loan] = used_.at(part.lent.loan);
    }
  }

 private:
  void On(const lending::ServeLoan& command) {
    if (!served_.insert(command.key).second) Die("a loan was served twice");
    if (command.blocks.empty() || command.units.size() != std::ssize(command.blocks))
      Die("a loan's units are not its blocks");
  }
  void On(const lending::StopServing& command) {
    if (served_.erase(command.key) == 0) Die("a loan ended that was not served");
  }
  void On(const lending::RecallLoan& command) {
    if (!served_.contains(command.key)) Die("a loan was recalled that is not served");
  }
  void On(const lending::UseLoan& command) {
    const lending::CreditorAddress& to = command.creditor;
    if (!used_.try_emplace(command.loan, lending::DebtorId{to.node, to.incarnation}).second)
      Die("a loan was used twice");
  }
  void On(const lending::ReturnLoan& command) {
    if (used_.erase(command.loan) == 0) Die("a loan was returned that is not used");
    late_.erase(command.loan);
  }

  Random& random_;
  std::set<lending::LoanKey> served_;
  std::map<LoanId, lending::DebtorId> used_, late_;  // with their creditors
};

class Driver {
 public:
  explicit Driver(fuzz::Bytes& bytes)
      : random_(bytes), odd_(random_), plane_(odd_, random_), lending_(random_) {
    engine::HashEngineOptions options;
    options.block_tokens = kBlockTokens;
    options.unit_tokens = kBlockTokens;
    options.context_tokens = 150;
    engine_ = *engine::NewHashEngine(options);
    if (!engine_->AllocateKv(kBlocks).ok()) Die("no KV");
    engine_->SetRemoteAttention(&lending_);
    const bool lends = random_.Below(4) != 0;
    const SchedulerOptions scheduler{.spec = engine_->spec(),
                                     .num_blocks = kBlocks,
                                     .max_batch_tokens = 40,
                                     .max_sequences = 3,
                                     .max_waiting = 4,
                                     .borrows = lends,
                                     .lend_blocks_max = lends ? kBlocks / 2 : 0};
    resources_ = std::make_unique<NodeResources>(scheduler);
    if (random_.Below(2) == 0) {
      core_ = std::make_unique<decode_node::DecodeCore>(*resources_);
    } else {
      core_ = std::make_unique<prefill_node::PrefillCore>(*resources_);
    }
  }

  void Live() {
    now_ += absl::Milliseconds(static_cast<int64_t>(random_.Below(400)));
    const RouterKey router(random_.Below(kRouters));
    switch (random_.Below(8)) {
      case 0:
      case 1:
      case 2:
        core_->OnCommand(router, odd_.Next(), now_);
        break;
      case 3:
      case 4:
        Step(router);
        break;
      case 5:
      case 6:
        Move(/*ending=*/false);
        break;
      default:
        Rare(router);
        break;
    }
    Take();
  }

  // All routers are gone and the KV plane ends what it has: nothing may be left.
  void Wind() {
    for (uint64_t router = 0; router < kRouters; ++router) {
      core_->OnRouterLost(RouterKey(router), now_);
      Take();
    }
    const auto idle = [&] { return core_->idle() && plane_.idle() && lending_.idle(); };
    for (int i = 0; i < 200 && !idle(); ++i) {
      Step(RouterKey(0));
      Take();
      Move(/*ending=*/true);
      core_->OnTick(now_ += absl::Seconds(1));
      Take();
    }
    if (!plane_.idle()) Die("leases or exports without an owner");
    if (!lending_.idle()) Die("loans without an owner");
    if (!core_->idle()) Die("the core is not idle");
    if (core_->load().blocks_used() != 0) Die("blocks are in use");
  }

 private:
  void Step(RouterKey router) {
    const auto slices = core_->PlanStep(now_);
    if (slices.empty()) return;
    if (random_.Below(8) == 0) return core_->OnStepDone(absl::InternalError("chosen"), now_);
    const bool disturb = random_.Below(4) == 0;
    auto result = engine_->Step(slices, [&](int layer) {
      core_->OnLayerDone(layer);
      if (disturb && layer == 0) core_->OnCommand(router, odd_.Next(), now_);
    });
    core_->OnStepDone(result, now_);
  }
  void Move(bool ending) {
    for (auto event = plane_.Next(ending); event.has_value(); event = plane_.Next(ending)) {
      core_->OnTransfer(*event, now_);
      Take();
      if (!ending) return;
    }
    for (auto event = lending_.Next(ending); event.has_value(); event = lending_.Next(ending)) {
      core_->OnLending(*event, now_);
      Take();
      if (!ending) return;
    }
  }
  void Rare(RouterKey router) {
    switch (random_.Below(6)) {
      case 0:
        return core_->OnRouterLost(router, now_);
      case 1:
        return core_->OnRouterJoined(router, now_);
      case 2:
        if (random_.Below(8) != 0) return;
        core_->BeginDrain(now_, absl::Seconds(1));
        return core_->StartMigration(now_, absl::Seconds(1));
      default:
        return core_->OnTick(now_);
    }
  }
  void Take() {
    const NodeActions actions = resources_->TakeActions();
    for (const auto& command : actions.lending) lending_.Handle(command);
    for (const auto& command : actions.transfer) plane_.Handle(command);
    for (const auto& [router, event] : actions.events) {
      if (event.event_case() == v1::NodeEvent::EVENT_NOT_SET) Die("an event without content");
    }
  }

  fuzz::FuzzRandom random_;
  fuzz::OddCommands odd_;
  ChoosingKvPlane plane_;
  ChoosingLendingPlane lending_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<NodeResources> resources_;
  std::unique_ptr<NodeCore> core_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

}  // namespace
}  // namespace tandem::node

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::SetLogLevel(tandem::LogLevel::kError);
  tandem::fuzz::Bytes bytes{data, size};
  tandem::node::Driver driver(bytes);
  while (!bytes.used_up()) driver.Live();
  driver.Wind();
  return 0;
}
