#include "sim/fault_injector.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::sim {

SimNode* FaultInjector::NodeAt(int64_t id) const {
  const int64_t index = id - static_cast<int64_t>(cluster_.routers.size());
  return index < 0 ? nullptr : cluster_.nodes[static_cast<size_t>(index)].get();
}

Process& FaultInjector::ProcessAt(int64_t id) const {
  if (SimNode* node = NodeAt(id); node != nullptr) return *node;
  return *cluster_.routers[static_cast<size_t>(id)];
}

template <typename Predicate>
const FaultInjector::Active* FaultInjector::Last(Predicate is) const {
  const auto found = std::find_if(active_.rbegin(), active_.rend(), is);
  return found == active_.rend() ? nullptr : &*found;
}

template <typename Callable>
void FaultInjector::Activate(const Fault& fault, uint64_t life, Callable end) {
  active_.push_back({&fault, life});
  const int64_t lasts_us = LastsUs(fault, cluster_.topology);
  world_.After(absl::Microseconds(lasts_us), [this, ended = active_.back(), end] {
    std::erase_if(active_, [&](const Active& active) { return active.fault == ended.fault; });
    end(ended);
  });
}

void FaultInjector::Inject(const Fault& fault) {
  if (log_.timeline())
    log_.Note(static_cast<int>(fault.target), absl::StrCat("FAULT ", ToText(fault)));
  switch (fault.kind) {
    case FaultKind::kPartition:
      return BlockFor(fault, /*both_ways=*/true);
    case FaultKind::kOneWayPartition:
      return BlockFor(fault, /*both_ways=*/false);
    case FaultKind::kSlowLink:
      Activate(fault, /*life=*/0, [this](const Active& ended) { SetRate(*ended.fault); });
      return SetRate(fault);
    case FaultKind::kCutStream:
      for (const auto& stream : cluster_.streams)
        if (stream->Joins(static_cast<int>(fault.target), static_cast<int>(fault.other)))
          stream->Cut();
      return;
    case FaultKind::kLoseFrames:
    case FaultKind::kDuplicateFrames:
    case FaultKind::kCorruptFrames:
    case FaultKind::kDelayFrames:
      Activate(fault, /*life=*/0,
               [this](const Active& ended) { SetFrameFaults(ended.fault->kind); });
      return SetFrameFaults(fault.kind);
    default:
      return InjectProcessFault(fault);
  }
}

// ---- processes

void FaultInjector::InjectProcessFault(const Fault& fault) {
  Process& process = ProcessAt(fault.target);
  if (!process.alive()) return;
  SimNode* node = NodeAt(fault.target);
  if (fault.kind == FaultKind::kCorruptBlock) {
    if (node != nullptr) node->CorruptBlock();
    return;
  }
  if (fault.kind == FaultKind::kHangStorage) {
    if (node != nullptr) node->HangStorage(absl::Microseconds(fault.lasts_us));
    return;
  }
  const bool drains = fault.kind == FaultKind::kDrain;
  if (drains && (node == nullptr || node->paused())) return;
  Activate(fault, process.life(), [this](const Active& ended) { EndProcessFault(ended); });
  switch (fault.kind) {
    case FaultKind::kCrash:
      process.Crash();
      if (node == nullptr)
        cluster_.clients.OnRouterCrash(*cluster_.routers[static_cast<size_t>(fault.target)]);
      break;
    case FaultKind::kPause:
      process.Pause();
      break;
    case FaultKind::kSlow:
      SetSlowness(fault.target);
      break;
    default:
      node->BeginDrain();
      break;
  }
}

void FaultInjector::EndProcessFault(const Active& ended) {
  const int64_t target = ended.fault->target;
  Process& process = ProcessAt(target);
  switch (ended.fault->kind) {
    case FaultKind::kSlow:
      return SetSlowness(target);
    case FaultKind::kPause: {
      const Active* other = Last([&](const Active& active) {
        return active.fault->kind == FaultKind::kPause && active.fault->target == target &&
               active.life == ended.life;
      });
      if (other == nullptr && process.life() == ended.life) process.Resume();
      return;
    }
    case FaultKind::kDrain:
      EndDrain(ended, process);
      return StartAgain(target);
    default:
      return StartAgain(target);
  }
}

void FaultInjector::EndDrain(const Active& ended, Process& process) {
  const Active* other = Last([&](const Active& active) {
    return active.fault->kind == FaultKind::kDrain && active.fault->target == ended.fault->target &&
           active.life == ended.life;
  });
  if (other == nullptr && process.life() == ended.life) process.Crash();
}

void FaultInjector::StartAgain(int64_t target) {
  Process& process = ProcessAt(target);
  const Active* other = Last([&](const Active& active) {
    const bool ends =
        active.fault->kind == FaultKind::kCrash || active.fault->kind == FaultKind::kDrain;
    return ends && active.fault->target == target;
  });
  if (process.alive() || other != nullptr) return;
  if (log_.timeline()) log_.Note(process.id(), "starts again");
  process.Start();
}

void FaultInjector::SetSlowness(int64_t target) {
  const Active* slow = Last([&](const Active& active) {
    return active.fault->kind == FaultKind::kSlow && active.fault->target == target;
  });
  ProcessAt(target).SetSlowness(slow == nullptr ? 1 : std::max<int64_t>(1, slow->fault->amount));
}

// ---- the network

void FaultInjector::BlockFor(const Fault& fault, bool both_ways) {
  const int a = static_cast<int>(fault.target), b = static_cast<int>(fault.other);
  cluster_.network.Block(a, b);
  if (both_ways) cluster_.network.Block(b, a);
  world_.After(absl::Microseconds(fault.lasts_us), [this, a, b, both_ways] {
    cluster_.network.Unblock(a, b);
    if (both_ways) cluster_.network.Unblock(b, a);
  });
}

void FaultInjector::SetRate(const Fault& fault) {
  const Active* slow = Last([&](const Active& active) {
    return active.fault->kind == FaultKind::kSlowLink && active.fault->target == fault.target &&
           active.fault->other == fault.other;
  });
  const int from = static_cast<int>(fault.target), to = static_cast<int>(fault.other);
  if (slow == nullptr) return cluster_.network.ResetRate(from, to);
  const int64_t amount = std::max<int64_t>(1, slow->fault->amount);
  cluster_.network.SetRate(from, to, static_cast<double>(amount));
}

void FaultInjector::SetFrameFaults(FaultKind kind) {
  const Active* last = Last([&](const Active& active) { return active.fault->kind == kind; });
  const int64_t amount = last == nullptr ? 0 : last->fault->amount;
  FrameFaults& faults = cluster_.network.faults();
  if (kind == FaultKind::kLoseFrames) faults.lose_one_in = static_cast<uint64_t>(amount);
  if (kind == FaultKind::kDuplicateFrames) faults.duplicate_one_in = static_cast<uint64_t>(amount);
  if (kind == FaultKind::kCorruptFrames) faults.corrupt_one_in = static_cast<uint64_t>(amount);
  if (kind == FaultKind::kDelayFrames) faults.delay_max = absl::Microseconds(amount);
}

}  // namespace tandem::sim
