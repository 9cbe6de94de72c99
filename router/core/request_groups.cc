// The sequences of a request as one: who leads, who waits, and how they end together.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "router/core/router_core_impl.h"

namespace tandem::router {

RequestMachine* RouterCoreImpl::FindSequence(const v1::Leg& leg, Serial& serial) {
  serial = leg.number();
  if (!leg.request_id().empty()) {
    const auto group = groups_.find(leg.request_id());
    serial = group == groups_.end() ? 0 : group->second->Find(leg.sequence_index());
  }
  const auto it = sequences_.find(serial);
  return it == sequences_.end() ? nullptr : it->second.machine.get();
}

Serial RouterCoreImpl::AddSequence(RequestGroup& group, RequestInput input, absl::Time now) {
  const Serial serial = ++last_serial_;
  sequences_[serial] = {
      std::make_unique<RequestMachine>(std::move(input), serial,
                                       RequestContext{options_, model_, fleet_, index_, placement_,
                                                      actions_, counters_, retries_},
                                       now),
      &group};
  group.by_index.push_back(serial);
  group.live.insert(serial);
  return serial;
}

void RouterCoreImpl::AddSequences(RequestGroup& group, RequestInput input, absl::Time now) {
  if (input.sequences == 1) {
    AddSequence(group, std::move(input), now);
    return;
  }
  RequestInput leader = input;
  leader.installs_prompt = true;
  AddSequence(group, std::move(leader), now);
  for (int32_t i = 1; i < input.sequences; ++i) {
    RequestInput follower = input;
    follower.sequence_index += i;
    follower.prompt_logprobs.reset();  // the leader's are everyone's
    AddSequence(group, std::move(follower), now);
  }
}

void RouterCoreImpl::SettleTouched(absl::Time now) {
  for (const Serial serial : touched_) Settle(serial, now);
  touched_.clear();
}

void RouterCoreImpl::Settle(Serial serial, absl::Time now) {
  const auto it = sequences_.find(serial);
  if (it == sequences_.end()) return;
  RequestMachine& machine = *it->second.machine;
  RequestGroup& group = *it->second.group;
  const bool leads = group.leader() == serial;
  RequestMachine::Outcome outcome = machine.Settle(now);
  if (!outcome.failure.ok()) return FailGroup(group, outcome.failure);
  if (group.beams != nullptr)
    TakeStep(group, outcome, machine.input().sequence_index);
  else
    Emit(group, outcome, machine.input().sequence_index);
  if (leads && machine.MayBeFollowed()) {
    group.home = machine.home();
    while (!group.held.empty()) Release(group, *group.held.begin(), now);
  }
  if (machine.done()) {
    const bool last = group.live.size() == 1;
    Remove(serial);
    if (last && group.beams != nullptr) return AdvanceSearch(group, now);
    if (last) return DropGroup(group);
    if (group.held.contains(group.leader())) Release(group, group.leader(), now);
    return;
  }
  if (machine.state() == RequestMachine::State::kQueued) File(serial);
  deadlines_.Set(serial, machine.deadline());
}

void RouterCoreImpl::Emit(const RequestGroup& group, RequestMachine::Outcome& outcome,
                          int32_t sequence_index) {
  auto& events = actions_.client_events;
  if (outcome.prompt_scores.has_value())
    events.emplace_back(group.id, PromptScored{*std::move(outcome.prompt_scores)});
  if (!outcome.tokens.empty())
    events.emplace_back(group.id, TokensReady{sequence_index, std::move(outcome.tokens)});
  if (!outcome.done.has_value()) return;
  RequestDone& done = *outcome.done;
  done.last = group.live.size() == 1;
  if (sequence_index != group.first_index) {
    done.usage.set_prompt_tokens(0);
    done.usage.set_cached_tokens(0);
  }
  if (done.last) ++counters_.requests_finished;
  events.emplace_back(group.id, std::move(done));
}

bool RouterCoreImpl::IsQueued(Serial serial) const {
  const auto it = sequences_.find(serial);
  return it != sequences_.end() && queue_.contains({it->second.machine->input().priority, serial});
}

void RouterCoreImpl::File(Serial serial) {
  const Sequence& sequence = sequences_.at(serial);
  RequestGroup& group = *sequence.group;
  if (IsQueued(serial) || group.held.contains(serial)) return;
  // Beams of later steps share blocks that lie there already.
  const bool shared = group.beams != nullptr && group.home.has_value();
  const bool waits = !shared && serial != group.leader() &&
                     !sequences_.at(group.leader()).machine->MayBeFollowed();
  if (waits) {
    sequence.machine->Hold();
    group.held.insert(serial);
  } else {
    queue_.insert({sequence.machine->input().priority, serial});
  }
}

void RouterCoreImpl::Release(RequestGroup& group, Serial serial, absl::Time now) {
  RequestMachine& machine = *sequences_.at(serial).machine;
  group.held.erase(serial);
  machine.Unhold(now);
  queue_.insert({machine.input().priority, serial});
  deadlines_.Set(serial, machine.deadline());
}

std::optional<NodeKey> RouterCoreImpl::BesideOf(const Sequence& sequence) const {
  if (sequence.group->by_index.size() == 1 && sequence.group->beams == nullptr) return std::nullopt;
  return sequence.group->home;
}

void RouterCoreImpl::FailGroup(RequestGroup& group, const absl::Status& why) {
  ++counters_.requests_failed;
  Log(LogLevel::kWarning, "request failed",
      {{"request_id", group.id.value()},
       {group.trace_id.empty() ? "" : "trace_id", group.trace_id},
       {"why", why.ToString()}});
  actions_.client_events.emplace_back(group.id, RequestFailed{why});
  const std::vector<Serial> live(group.live.begin(), group.live.end());
  for (const Serial serial : live) {
    sequences_.at(serial).machine->Finish(request::FinishReason::kAborted);
  }
  DropGroup(group);
}

void RouterCoreImpl::DropGroup(RequestGroup& group) {
  while (!group.live.empty()) Remove(group.leader());
  groups_.erase(RequestId(group.id).value());
}

void RouterCoreImpl::Remove(Serial serial) {
  const auto it = sequences_.find(serial);
  RequestGroup& group = *it->second.group;
  queue_.erase({it->second.machine->input().priority, serial});
  deadlines_.Erase(serial);
  group.held.erase(serial);
  group.live.erase(serial);
  group.by_index[it->second.machine->input().sequence_index - group.first_index] = 0;
  sequences_.erase(it);
}

}  // namespace tandem::router
