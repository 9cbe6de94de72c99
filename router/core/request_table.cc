#include "router/core/request_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutation.h"
#include "common/rpc/retry_after.h"
#include "common/telemetry/log.h"

namespace tandem::router {

// ---- clients

absl::Status RequestTable::Submit(RequestInput input, absl::Time now) {
  const int64_t held_bytes = input.HeldBytesMax();
  held_bytes_ += held_bytes;
  const RouterOptions& options = context_.options;
  const absl::Time rank = AdmissionQueue::RankOf(now, input.priority, options.priority_level,
                                                 options.queue_deadline / 4);
  auto made = std::make_unique<SequenceGroup>(input.id, input.trace_id, input.sequence_index,
                                              held_bytes, input.share, rank);
  const ServiceTier& tier = input.TierOr(options.default_tier);
  if (tier.ttft_slo > absl::ZeroDuration()) made->set_first_token_goal(tier.ttft_slo);
  const bool refuses_late = tier.late == LatePolicy::kRefuse;
  SequenceGroup& group = *groups_.emplace(input.id.value(), std::move(made)).first->second;
  queue_.Join(group.share().tenant, group.share().weight);
  if (input.beams.has_value()) {
    group.set_beams(std::make_unique<BeamGroup>(std::move(input), now));
    beams_not_running_ += group.beams()->width();
    AddBeams(group, now);
  } else {
    AddSequences(group, std::move(input), now);
  }
  const std::vector<Serial> serials = group.by_index();
  for (const Serial serial : serials) QueueOrWaitForLeader(serial);
  PlaceQueued(now);
  if (IsQueued(serials.front()) && refuses_late) {
    const Serial first = serials.front();
    const Wait wait = WaitBefore(first, now);
    const auto refusal = sequences_.at(first)->machine->LateRefusal(wait.before, wait.usual, now);
    if (refusal.has_value()) {
      DropGroup(group);
      return *refusal;
    }
  }
  // Last, because it may cost another request its place.
  if (IsQueued(serials.front()) && !FitQueue(group.share().tenant, now)) {
    absl::Status full = QueueIsFull(now);
    DropGroup(group);
    return full;
  }
  for (const Serial serial : serials) Settle(serial, now);
  return absl::OkStatus();
}

void RequestTable::Finish(const RequestId& id, request::FinishReason reason, absl::Time now) {
  const auto found = groups_.find(id.value());
  if (found == groups_.end()) return;
  const std::vector<Serial> live(found->second->live().begin(), found->second->live().end());
  for (const Serial serial : live) sequences_.at(serial)->machine->Finish(reason);
  for (const Serial serial : live) Settle(serial, now);
  PlaceQueued(now);
}

void RequestTable::FinishSequence(const RequestId& id, int32_t sequence_index,
                                  request::FinishReason reason, absl::Time now) {
  const auto found = groups_.find(id.value());
  const Serial serial = found == groups_.end() ? 0 : found->second->Find(sequence_index);
  if (serial == 0) return;
  sequences_.at(serial)->machine->Finish(reason);
  Settle(serial, now);
  PlaceQueued(now);
}

// ---- nodes and time

SequenceMachine* RequestTable::FindSequence(const v1::Leg& leg, Serial& serial) {
  serial = leg.number();
  if (TANDEM_MUTATED(kLegFoundByName) && !leg.request_id().empty()) {
    const auto group = groups_.find(leg.request_id());
    serial = group == groups_.end() ? 0 : group->second->Find(leg.sequence_index());
  }
  const Sequence* sequence = Find(serial);
  if (sequence == nullptr) return nullptr;
  SequenceMachine* machine = sequence->machine.get();
  // A node may leave the name out; one that gives it gives the whole of it.
  const RequestInput& input = machine->input();
  const bool same = leg.request_id().empty() || (leg.request_id() == input.id.value() &&
                                                 leg.sequence_index() == input.sequence_index);
  return same ? machine : nullptr;
}

void RequestTable::OnEvent(NodeKey node, const v1::Leg& leg, const v1::NodeEvent& event,
                           absl::Time now) {
  Serial serial = 0;
  SequenceMachine* machine = FindSequence(leg, serial);
  if (machine == nullptr) return;
  machine->OnEvent(node, event, now);
  touched_.push_back(serial);
}

void RequestTable::OnTokens(NodeKey node, const v1::TokensGenerated::Step& step, absl::Time now) {
  Serial serial = 0;
  SequenceMachine* machine = FindSequence(step.leg(), serial);
  if (machine == nullptr) return;
  machine->OnTokens(node, step, now);
  touched_.push_back(serial);
}

void RequestTable::SettleTouched(absl::Time now) {
  for (const Serial serial : touched_) Settle(serial, now);
  touched_.clear();
}

void RequestTable::OnNodeLost(NodeKey node, const absl::Status& why, absl::Time now) {
  tenant_blocks_.OnNodeLost(node);
  std::vector<Serial> concerned;
  for (auto& [serial, sequence] : sequences_) {
    const bool was_there = sequence->machine->OnNodeLost(node, why, now);
    if (TANDEM_MUTATED(kHealthyAborted)) sequence->machine->Finish(request::FinishReason::kAborted);
    if (was_there || TANDEM_MUTATED(kHealthyAborted)) concerned.push_back(serial);
  }
  for (const Serial serial : concerned) Settle(serial, now);
}

void RequestTable::OnTick(absl::Time now) {
  for (const Serial serial : deadlines_.PopDue(now)) {
    const auto it = sequences_.find(serial);
    if (it == sequences_.end()) continue;
    it->second->due = absl::InfiniteFuture();
    it->second->machine->OnDeadline(now);
    Settle(serial, now);
  }
}

void RequestTable::FailWaiting(absl::FunctionRef<absl::Status(const RequestInput&)> check) {
  std::vector<std::pair<SequenceGroup*, absl::Status>> failing;
  for (const auto& [id, group] : groups_) {
    if (group->runs() || group->computed_tokens() > 0 || group->live().empty()) continue;
    absl::Status status = check(sequences_.at(group->leader())->machine->input());
    if (!status.ok()) failing.emplace_back(group.get(), std::move(status));
  }
  // In the order of arrival, so that a simulated run with the same seed repeats exactly.
  std::sort(failing.begin(), failing.end(),
            [](const auto& a, const auto& b) { return a.first->leader() < b.first->leader(); });
  for (const auto& [group, why] : failing) FailGroup(*group, why);
}

std::array<int64_t, 5> RequestTable::sequences_by_state() const {
  std::array<int64_t, 5> counts = {};
  for (const auto& [serial, sequence] : sequences_) {
    const auto state = static_cast<size_t>(sequence->machine->state());
    if (state < counts.size()) ++counts[state];
  }
  return counts;
}

v1::ListRequestsResponse RequestTable::ListRunning(const RunningQuery& query,
                                                   absl::Time now) const {
  v1::ListRequestsResponse response;
  int64_t examined = 0;
  for (const auto& [serial, sequence] : sequences_) {  // serials rise with time
    if (response.requests_size() >= query.limit || ++examined > RunningQuery::kExaminedMax) break;
    const SequenceGroup& group = *sequence->group;
    if (group.leader() != serial || !absl::StartsWith(group.id().value(), query.id_prefix))
      continue;
    v1::RunningRequest& running = *response.add_requests();
    running = DescribeRunning(*sequence->machine, now);
    running.set_sequences(static_cast<int32_t>(group.live().size()));
  }
  return response;
}

// ---- groups

void RequestTable::AddSequence(SequenceGroup& group, RequestInput input, absl::Time now) {
  const Serial serial = ++last_serial_;
  auto sequence = std::make_unique<Sequence>(
      Sequence{std::make_unique<SequenceMachine>(std::move(input), serial, context_, now), &group});
  by_serial_.emplace(serial, sequence.get());
  sequences_.emplace(serial, std::move(sequence));
  group.Add(serial);
}

void RequestTable::AddSequences(SequenceGroup& group, RequestInput input, absl::Time now) {
  if (input.sequences == 1) {
    AddSequence(group, std::move(input), now);
    return;
  }
  input.forks_follow = true;
  RequestInput leader = input;
  leader.installs_prompt = true;
  AddSequence(group, std::move(leader), now);
  for (int32_t i = 1; i < input.sequences; ++i) {
    RequestInput follower = input;
    follower.sequence_index += i;
    follower.prompt_logprobs.reset();  // the leader reports them for the whole request
    AddSequence(group, std::move(follower), now);
  }
}

void RequestTable::AddBeams(SequenceGroup& group, absl::Time now) {
  group.ClearIndices();
  for (RequestInput& input : group.beams()->StepInputs(now)) {
    AddSequence(group, std::move(input), now);
    --beams_not_running_;
  }
}

void RequestTable::AdvanceSearch(SequenceGroup& group, absl::Time now) {
  BeamGroup& beams = *group.beams();
  if (beams.Advance(context_.fleet.order().UsualCapacityTokens(beams.prompt_tokens()))) {
    std::vector<ClientEvent> answers = beams.Answers(now);
    if (answers.empty())
      return FailGroup(group, absl::DataLossError("a step of the beam search came without the "
                                                  "likeliest tokens that it goes on with"));
    for (ClientEvent& event : answers) {
      if (auto* done = std::get_if<SequenceDone>(&event); done != nullptr && done->last)
        done->computed_tokens = group.computed_tokens();
      context_.actions.client_events.emplace_back(group.id(), std::move(event));
    }
    ++context_.counters.requests_finished;
    DropGroup(group);
    return;
  }
  AddBeams(group, now);
  const std::vector<Serial> serials = group.by_index();
  for (const Serial serial : serials) {
    sequences_.at(serial)->machine->SetGoalMet();
    QueueOrWaitForLeader(serial);
    SetDeadline(serial, *sequences_.at(serial));
  }
}

void RequestTable::Settle(Serial serial, absl::Time now) {
  ++settled_;
  Sequence* const sequence = Find(serial);
  if (sequence == nullptr) return;
  SequenceMachine& machine = *sequence->machine;
  SequenceGroup& group = *sequence->group;
  SequenceMachine::Outcome outcome = machine.Settle(now);
  CountPlaced(*sequence, !machine.done() && machine.state() != SequenceMachine::State::kQueued);
  ChargeTenant(serial, *sequence, std::ssize(outcome.tokens));
  if (!outcome.failure.ok()) {
    if (group.beams() != nullptr) outcome.failure = group.beams()->FailureOf(outcome.failure, now);
    return FailGroup(group, WithHint(outcome.failure, now));
  }
  if (outcome.done.has_value())
    outcome.done->decode_leg = {serial, machine.legs().decode().attempt()};
  Emit(group, outcome, machine.input().sequence_index);
  if (group.beams() != nullptr && !group.beams()->failure().ok())
    return FailGroup(group, group.beams()->failure());
  if (group.leader() == serial && machine.MayBeFollowed()) {
    group.set_home(machine.home());
    while (!group.held().empty()) Release(group, *group.held().begin(), now);
  }
  if (machine.done()) return EndSequence(serial, group, now);
  const bool queued = machine.state() == SequenceMachine::State::kQueued;
  CountBlocks(serial, *sequence, !queued);
  if (queued) QueueOrWaitForLeader(serial);
  SetDeadline(serial, *sequence);
}

void RequestTable::ChargeTenant(Serial serial, const Sequence& sequence, int64_t generated) {
  const SequenceMachine& machine = *sequence.machine;
  SequenceGroup& group = *sequence.group;
  const bool prompt_begins =
      group.leader() == serial && machine.was_placed() && group.computed_tokens() == 0;
  if (prompt_begins) group.CountPrompt(std::ssize(*machine.input().prompt));
  group.CountGenerated(generated);
  queue_.Charge(group.share().tenant, (prompt_begins ? machine.work().prompt_us : 0) +
                                          static_cast<double>(generated) * machine.work().token_us);
}

void RequestTable::EndSequence(Serial serial, SequenceGroup& group, absl::Time now) {
  const bool last = group.live().size() == 1;
  Remove(serial);
  if (!last) {
    if (group.held().contains(group.leader())) Release(group, group.leader(), now);
  } else if (group.beams() != nullptr) {
    AdvanceSearch(group, now);
  } else {
    DropGroup(group);
  }
}

void RequestTable::CountPlaced(Sequence& sequence, bool placed) {
  if (sequence.counted_placed == placed) return;
  sequence.counted_placed = placed;
  const bool ran = sequence.group->runs();
  sequence.group->CountPlaced(placed ? 1 : -1);
  if (sequence.group->runs() != ran) groups_running_ += ran ? -1 : 1;
}

int64_t RequestTable::BlocksOf(Serial serial, const Sequence& sequence) const {
  const int64_t block_tokens = context_.fleet.block_tokens();
  if (block_tokens == 0) return 0;
  const SequenceMachine& machine = *sequence.machine;
  const auto own = static_cast<int64_t>(machine.delivered_tokens()) + 1;
  const DecodeLeg& leg = machine.legs().decode();
  const bool follows = sequence.group->shares_blocks() && sequence.group->leader() != serial;
  // What the node had cached may be other sequences' at the same time: the node's reports tell.
  const int64_t cached = leg.live() ? leg.cached_tokens() : 0;
  const int64_t tokens = own + (follows ? 0 : std::ssize(*machine.input().prompt) - cached);
  return (tokens + block_tokens - 1) / block_tokens;
}

void RequestTable::CountBlocks(Serial serial, Sequence& sequence, bool placed) {
  const TenantShare& share = sequence.group->share();
  if (share.kv_share == 0) return;
  const int64_t blocks = placed ? BlocksOf(serial, sequence) : 0;
  tenant_blocks_.Add(share.tenant, blocks - std::exchange(sequence.blocks, blocks));
}

bool RequestTable::ExceedsShare(Serial serial, const Sequence& sequence) const {
  const TenantShare& share = sequence.group->share();
  if (share.kv_share == 0 || context_.fleet.decode_blocks() == 0) return false;
  const double most = share.kv_share * static_cast<double>(context_.fleet.decode_blocks());
  // An answer may outgrow the share while it runs, and a lost node's blocks are no part of it.
  if (sequence.machine->delivered_tokens() > 0) return false;
  const int64_t used = tenant_blocks_.Used(share.tenant) + BlocksOf(serial, sequence);
  return static_cast<double>(used) > most;
}

void RequestTable::Emit(const SequenceGroup& group, SequenceMachine::Outcome& outcome,
                        int32_t sequence_index) {
  auto& events = context_.actions.client_events;
  if (outcome.prompt_scores.has_value())
    events.emplace_back(group.id(), PromptScored{*std::move(outcome.prompt_scores)});
  if (group.beams() != nullptr)
    return group.beams()->OnOutcome(sequence_index - group.first_index(), outcome,
                                    context_.fleet.numerics_id());
  if (!outcome.tokens.empty())
    events.emplace_back(group.id(), TokensReady{sequence_index, std::move(outcome.tokens)});
  if (!outcome.done.has_value()) return;
  SequenceDone& done = *outcome.done;
  done.last = group.live().size() == 1;
  if (sequence_index != group.first_index()) {
    done.usage.set_prompt_tokens(0);
    done.usage.set_cached_tokens(0);
  }
  if (done.last) {
    ++context_.counters.requests_finished;
    done.computed_tokens = group.computed_tokens();
  }
  if (TANDEM_MUTATED(kEndRepeated) && done.last) events.emplace_back(group.id(), done);
  events.emplace_back(group.id(), std::move(done));
}

bool RequestTable::IsQueued(Serial serial) const {
  const auto it = sequences_.find(serial);
  return it != sequences_.end() &&
         queue_.Contains(it->second->group->share().tenant, PositionOf(serial));
}

AdmissionQueue::Position RequestTable::PositionOf(Serial serial) const {
  const SequenceGroup& group = *sequences_.at(serial)->group;
  // Without a goal: in the order of arrival. With one: in the order of what is due first.
  const absl::Duration due = group.late() ? absl::ZeroDuration() : group.first_token_goal();
  return {group.rank() + due, serial, group.late()};
}

void RequestTable::SetLate(Serial serial) {
  const auto it = sequences_.find(serial);
  if (it == sequences_.end() || it->second->group->late()) return;
  SequenceGroup& group = *it->second->group;
  std::vector<Serial> queued;
  for (const Serial other : group.live())
    if (IsQueued(other)) queued.push_back(other);
  for (const Serial other : queued) queue_.Erase(group.share().tenant, PositionOf(other));
  group.set_late();
  for (const Serial other : queued) queue_.Insert(group.share().tenant, PositionOf(other));
}

void RequestTable::QueueOrWaitForLeader(Serial serial) {
  const Sequence& sequence = *sequences_.at(serial);
  SequenceGroup& group = *sequence.group;
  if (IsQueued(serial) || group.held().contains(serial)) return;
  // The beams of later steps share blocks that lie on the decode node already.
  const bool shared = group.beams() != nullptr && group.home().has_value();
  const bool waits = !shared && serial != group.leader() &&
                     !sequences_.at(group.leader())->machine->MayBeFollowed();
  if (waits) {
    sequence.machine->Hold();
    group.Hold(serial);
  } else {
    queue_.Insert(group.share().tenant, PositionOf(serial));
  }
}

void RequestTable::Release(SequenceGroup& group, Serial serial, absl::Time now) {
  SequenceMachine& machine = *sequences_.at(serial)->machine;
  group.Unhold(serial);
  machine.Unhold(now);
  queue_.Insert(group.share().tenant, PositionOf(serial));
  SetDeadline(serial, *sequences_.at(serial));
}

// Most deadlines move later with each token: the queue keeps the old ones.
void RequestTable::SetDeadline(Serial serial, Sequence& sequence) {
  const absl::Time deadline = sequence.machine->deadline();
  if (deadline >= sequence.due) return;
  sequence.due = deadline;
  deadlines_.Set(serial, deadline);
}

std::optional<NodeKey> RequestTable::BesideOf(const SequenceGroup& group) const {
  return group.shares_blocks() ? group.home() : std::nullopt;
}

void RequestTable::FailGroup(SequenceGroup& group, const absl::Status& why) {
  ++context_.counters.requests_failed;
  Log(LogLevel::kWarning, "request failed",
      {{"request_id", group.id().value()},
       {group.trace_id().empty() ? "" : "trace_id", group.trace_id()},
       {"why", why.ToString()}});
  context_.actions.client_events.emplace_back(group.id(),
                                              RequestFailed{why, group.computed_tokens()});
  const std::vector<Serial> live(group.live().begin(), group.live().end());
  for (const Serial serial : live)
    sequences_.at(serial)->machine->Finish(request::FinishReason::kAborted);
  DropGroup(group);
}

void RequestTable::DropGroup(SequenceGroup& group) {
  while (!group.live().empty()) Remove(group.leader());
  if (group.beams() != nullptr) beams_not_running_ -= group.beams()->width();
  held_bytes_ -= group.held_bytes();
  queue_.Leave(group.share().tenant);
  groups_.erase(RequestId(group.id()).value());
}

void RequestTable::Remove(Serial serial) {
  const auto it = sequences_.find(serial);
  CountBlocks(serial, *it->second, /*placed=*/false);
  SequenceGroup& group = *it->second->group;
  if (group.beams() != nullptr) ++beams_not_running_;
  CountPlaced(*it->second, false);
  const RequestInput& input = it->second->machine->input();
  queue_.Erase(group.share().tenant, PositionOf(serial));
  deadlines_.Erase(serial);
  group.Remove(serial, input.sequence_index);
  by_serial_.erase(serial);
  sequences_.erase(it);
}

}  // namespace tandem::router
