#include "cli/chaos/fault_runner.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::cli {
FaultRunner::FaultRunner(std::vector<ChaosFault> faults, const ChaosTopology& topology,
                         ChaosCluster& cluster, Namespaces* namespaces)
    : faults_(std::move(faults)), topology_(topology), cluster_(cluster), namespaces_(namespaces) {}

void FaultRunner::Tick(absl::Duration since_begin) {
  for (const ChaosCluster::Ended& ended : cluster_.TakeEnded()) OnEnded(ended, since_begin);
  EndThoseOverAt(since_begin);
  // A fault that begins late (the machine stalled) delays all later faults as well: the plan's
  // intervals guarantee that some processes can serve.
  while (next_ < faults_.size() && faults_[next_].at + late_ <= since_begin) {
    ChaosFault fault = faults_[next_++];
    late_ = since_begin - fault.at;
    fault.at = since_begin;
    Begin(fault);
  }
}

void FaultRunner::EndThoseOverAt(absl::Duration since_begin) {
  for (size_t i = 0; i < active_.size();) {
    const bool drain = active_[i].kind == ChaosFaultKind::kDrain;
    if (active_[i].end() + (drain ? kChaosDrainGrace : absl::ZeroDuration()) > since_begin) {
      ++i;
      continue;
    }
    const ChaosFault ending = active_[i];
    active_.erase(active_.begin() + static_cast<ptrdiff_t>(i));
    End(ending, since_begin);
  }
}

void FaultRunner::Begin(ChaosFault fault) {
  std::printf("%s\n", ToText(fault, topology_).c_str());
  std::fflush(stdout);
  carried_out_.push_back(fault);
  active_.push_back(fault);
  switch (fault.kind) {
    case ChaosFaultKind::kKill:
      return cluster_.Kill(fault.victim);
    case ChaosFaultKind::kPause:
      return cluster_.Signal(fault.victim, SIGSTOP);
    case ChaosFaultKind::kMemory:
      if (cluster_.LimitMemory(fault.victim, true))
        memory_limited_until_[fault.victim] = absl::InfiniteDuration();
      return;
    case ChaosFaultKind::kDrain:
      if (cluster_.pid(fault.victim) == 0) return;
      draining_.insert(fault.victim);
      return cluster_.Signal(fault.victim, SIGTERM);
    case ChaosFaultKind::kDisk:
      if (const absl::Status filled = namespaces_->FillDisk(); !filled.ok())
        crashes_.push_back(absl::StrCat("the disk cannot be filled: ", filled.ToString()));
      return;
    default:
      return ApplyNetwork();
  }
}

void FaultRunner::End(const ChaosFault& fault, absl::Duration now) {
  switch (fault.kind) {
    case ChaosFaultKind::kKill:
      return StartDown(fault.victim);
    case ChaosFaultKind::kPause:
      return cluster_.Signal(fault.victim, SIGCONT);
    case ChaosFaultKind::kMemory:
      return EndMemoryFault(fault.victim, now);
    case ChaosFaultKind::kDrain:
      // No other fault has stopped the victim, so it should have ended by itself.
      if (draining_.erase(fault.victim) == 0) return;
      crashes_.push_back(absl::StrFormat(
          "%s got SIGTERM at %.1f s and did not end within %.1f s", topology_.NameOf(fault.victim),
          absl::ToDoubleSeconds(fault.at), absl::ToDoubleSeconds(fault.lasts + kChaosDrainGrace)));
      cluster_.Kill(fault.victim);
      return StartDown(fault.victim);
    case ChaosFaultKind::kDisk:
      // Another one may have begun meanwhile: the disk stays full until the last one ends.
      if (!Active(ChaosFaultKind::kDisk)) namespaces_->EmptyDisk();
      return;
    default:
      return ApplyNetwork();
  }
}

bool FaultRunner::Active(ChaosFaultKind kind) const {
  return std::any_of(active_.begin(), active_.end(),
                     [kind](const ChaosFault& fault) { return fault.kind == kind; });
}

bool FaultRunner::DiedOfMemory(const ChaosCluster::Ended& ended, absl::Duration now) const {
  // A process that is refused memory ends itself. It has no reason to use a bad address.
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE})
    if (ended.how == absl::StrCat("signal ", signal)) return false;
  const auto found = memory_limited_until_.find(ended.process);
  return found != memory_limited_until_.end() && now <= found->second;
}

void FaultRunner::OnEnded(const ChaosCluster::Ended& ended, absl::Duration now) {
  // A router says by exit code 1 that its drain cut answers off, which their clients then resume.
  const bool cut_off = topology_.RoleOf(ended.process) == "router" && ended.how == "exit code 1";
  const bool drained =
      draining_.erase(ended.process) > 0 && (ended.how == "exit code 0" || cut_off);
  if (!drained && !DiedOfMemory(ended, now))
    crashes_.push_back(absl::StrFormat("%s ended with %s at %.1f s",
                                       topology_.NameOf(ended.process), ended.how,
                                       absl::ToDoubleSeconds(now)));
  // The end of a fault of its memory starts it.
  const bool limited = std::any_of(active_.begin(), active_.end(), [&](const ChaosFault& fault) {
    return fault.kind == ChaosFaultKind::kMemory && fault.victim == ended.process;
  });
  if (!limited) StartDown(ended.process);
}

void FaultRunner::StartDown(int process) {
  memory_limited_until_.erase(process);
  if (const absl::Status started = cluster_.StartAgain(process); !started.ok())
    crashes_.push_back(
        absl::StrCat(topology_.NameOf(process), " cannot be started: ", started.ToString()));
}

void FaultRunner::EndMemoryFault(int process, absl::Duration now) {
  if (cluster_.pid(process) == 0) return StartDown(process);
  cluster_.LimitMemory(process, false);
  if (const auto found = memory_limited_until_.find(process); found != memory_limited_until_.end())
    found->second = now + kChaosMemoryGrace;
}

void FaultRunner::ApplyNetwork() {
  const int ports = topology_.processes() + 1;  // port 0: the clients
  std::vector<LinkCondition> links(static_cast<size_t>(ports) * static_cast<size_t>(ports));
  const auto worsen = [&](int from, int to, const ChaosFault& fault) {
    LinkCondition& link = links[static_cast<size_t>(from * ports + to)];
    if (fault.kind == ChaosFaultKind::kPartition) link.cut = true;
    if (fault.kind == ChaosFaultKind::kLoss)
      link.lost_of_thousand = std::max(link.lost_of_thousand, fault.amount);
    if (fault.kind == ChaosFaultKind::kSlowLink)
      link.bytes_per_second =
          link.bytes_per_second == 0 ? fault.amount : std::min(link.bytes_per_second, fault.amount);
  };
  for (const ChaosFault& fault : active_) {
    if (!IsNetworkFault(fault.kind)) continue;
    const int victim = fault.victim + 1;
    for (int port = 0; port < ports; ++port) {
      if (port == victim) continue;
      if (fault.other != ChaosFault::kEveryProcess && port != fault.other + 1) continue;
      worsen(victim, port, fault);
      if (!fault.one_way) worsen(port, victim, fault);
    }
  }
  for (int from = 0; from < ports; ++from)
    for (int to = 0; to < ports; ++to)
      if (from != to)
        namespaces_->packets().Set(from, to, links[static_cast<size_t>(from * ports + to)]);
}

void FaultRunner::EndAll(absl::Duration since_begin) {
  for (const ChaosCluster::Ended& ended : cluster_.TakeEnded()) OnEnded(ended, since_begin);
  EndThoseOverAt(since_begin);
  for (const int process : std::exchange(draining_, {})) {
    cluster_.Kill(process);
    StartDown(process);
  }
  for (const ChaosFault& fault : std::exchange(active_, {})) End(fault, since_begin);
  next_ = faults_.size();
}

}  // namespace tandem::cli
