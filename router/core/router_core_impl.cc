#include "router/core/router_core_impl.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "router/core/validate.h"
#include "router/fleet/registration.h"

namespace tandem::router {
namespace {

// A younger request may pass requests that found no room, but few, and none that has waited long.
constexpr int kPassedMax = 8;
constexpr int kVisitedMax = 256;  // per walk, those that fit nowhere included
constexpr absl::Duration kFirstInLineAfter = absl::Seconds(1);

}  // namespace

std::unique_ptr<RouterCore> RouterCore::Create(const RouterOptions& options,
                                               const ModelIdentity& model, Random& random) {
  return std::make_unique<RouterCoreImpl>(options, model, random);
}

RouterCoreImpl::RouterCoreImpl(const RouterOptions& options, const ModelIdentity& model,
                               Random& random)
    : options_(options),
      model_(model),
      random_(random),
      fleet_(model, {options.nodes_max, options.allow_mixed_numerics}),
      index_(options.index_blocks_max),
      placement_({.local_prefill_tokens_max = options.local_prefill_tokens_max,
                  .pick_power_of_two = options.pick_power_of_two},
                 fleet_, index_, random_),
      incarnation_(random.Next()) {}

void RouterCoreImpl::NoteTime(absl::Time now) {
  if (!started_.has_value()) started_ = now;
}

// ---- clients

absl::Status RouterCoreImpl::CheckAdmission(const RequestInput& input) const {
  const std::string& id = input.id.value();
  if (id.empty() || input.prompt.empty() || input.stop.max_tokens < 1)
    return absl::InvalidArgumentError(absl::StrCat(
        "request \"", id, "\": prompt of ", input.prompt.size(), " tokens and max_tokens ",
        input.stop.max_tokens, ", expected an id and at least 1 of each"));
  if (groups_.contains(id))
    return absl::AlreadyExistsError(absl::StrCat("request ", id, " is running"));
  if (requests_running() >= options_.requests_max)
    return absl::ResourceExhaustedError(
        absl::StrCat("this router runs ", requests_running(), " requests, its bound"));
  const auto prompt = static_cast<int64_t>(input.prompt.size());
  if (input.sequences < 1 || input.sequences > kSequencesMax)
    return absl::InvalidArgumentError(absl::StrCat("request ", id, ": ", input.sequences,
                                                   " sequences, expected 1 to ", kSequencesMax));
  // A default max_tokens shrinks to what fits; one token must.
  const int64_t needed = prompt + (input.max_tokens_given ? int64_t{input.stop.max_tokens} : 1);
  if (needed > model_.context_tokens)
    return absl::InvalidArgumentError(absl::StrCat("prompt and answer need ", needed,
                                                   " tokens, the model's context is ",
                                                   model_.context_tokens));
  const int64_t capacity = fleet_.decode_capacity_tokens();
  if (capacity > 0 && needed > capacity)
    return absl::InvalidArgumentError(absl::StrCat("prompt and answer need ", needed,
                                                   " tokens of KV, the largest decode node holds ",
                                                   capacity));
  return absl::OkStatus();
}

int64_t RouterCoreImpl::context_tokens() const {
  const int64_t capacity = fleet_.decode_capacity_tokens();
  return capacity > 0 ? std::min<int64_t>(capacity, model_.context_tokens) : model_.context_tokens;
}

absl::Status RouterCoreImpl::Submit(RequestInput input, absl::Time now) {
  NoteTime(now);
  RETURN_IF_ERROR(CheckAdmission(input));
  RequestGroup* const group =
      groups_.emplace(input.id.value(), std::make_unique<RequestGroup>()).first->second.get();
  group->id = input.id;
  group->trace_id = input.trace_id;
  group->first_index = input.sequence_index;
  if (input.beams.has_value()) {
    StartSearch(*group, std::move(input), now);
  } else {
    AddSequences(*group, std::move(input), now);
  }
  const std::vector<Serial> serials = group->by_index;
  for (const Serial serial : serials) File(serial);
  PlaceQueued(now);
  if (IsQueued(serials.front()) && requests_queued() > options_.queue_max) {
    DropGroup(*group);
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.queue_max, " requests wait for placement, the queue's bound"));
  }
  for (const Serial serial : serials) Settle(serial, now);
  return absl::OkStatus();
}

void RouterCoreImpl::Finish(const RequestId& id, request::FinishReason reason, absl::Time now) {
  NoteTime(now);
  const auto found = groups_.find(id.value());
  if (found == groups_.end()) return;
  const std::vector<Serial> live(found->second->live.begin(), found->second->live.end());
  for (const Serial serial : live) sequences_.at(serial).machine->Finish(reason);
  for (const Serial serial : live) Settle(serial, now);
  PlaceQueued(now);
}

void RouterCoreImpl::FinishSequence(const RequestId& id, int32_t sequence_index,
                                    request::FinishReason reason, absl::Time now) {
  NoteTime(now);
  const auto found = groups_.find(id.value());
  const Serial serial = found == groups_.end() ? 0 : found->second->Find(sequence_index);
  if (serial == 0) return;
  sequences_.at(serial).machine->Finish(reason);
  Settle(serial, now);
  PlaceQueued(now);
}

// ---- nodes

absl::StatusOr<v1::Welcome> RouterCoreImpl::NodeJoined(NodeKey key,
                                                       const v1::Registration& registration,
                                                       absl::Time now) {
  NoteTime(now);
  ASSIGN_OR_RETURN(const std::vector<kv::BlockHash> hashes,
                   kv::UnpackHashes(registration.cached_blocks()));
  ASSIGN_OR_RETURN(const std::optional<NodeKey> replaced, fleet_.CheckJoin(key, registration));
  if (replaced.has_value())
    Disconnect(*replaced,
               absl::UnavailableError(
                   absl::StrCat("node ", registration.node_id(), " opened a newer stream")),
               now);
  const Node& node = fleet_.Join(key, registration, now);
  index_.AddNode(node.slot, node.num_blocks);
  index_.Store(node.slot, hashes);
  Log(LogLevel::kInfo, "node joined",
      {{"node_id", node.id.value()},
       {"role", RoleName(node.role)},
       {"blocks", node.num_blocks},
       {"cached_blocks", hashes.size()}});
  PlaceQueued(now);

  v1::Welcome welcome;
  welcome.set_router_id(options_.router_id);
  welcome.set_router_incarnation(incarnation_);
  welcome.set_heartbeat_interval_s(absl::ToDoubleSeconds(options_.heartbeat_interval));
  welcome.set_lease_time_s(absl::ToDoubleSeconds(options_.lease_time));
  return welcome;
}

absl::Status RouterCoreImpl::CheckSequenceNumber(Node& node, const v1::NodeMessage& message) const {
  // The registration is number 1 and comes through NodeJoined. 0 = the stream is not numbered.
  const uint64_t number = message.sequence_number();
  if (number == 0) return absl::OkStatus();
  const uint64_t expected = node.last_sequence_number + 1;
  if (node.last_sequence_number != 0 && number != expected)
    return absl::DataLossError(
        absl::StrCat("node ", node.id.value(), ": message ", number, " came, expected ", expected));
  node.last_sequence_number = number;
  return absl::OkStatus();
}

void RouterCoreImpl::OnNodeMessage(NodeKey key, const v1::NodeMessage& message, absl::Time now) {
  NoteTime(now);
  Node* node = fleet_.Find(key);
  if (node == nullptr) return;
  node->last_heard = now;
  absl::Status status = CheckSequenceNumber(*node, message);
  if (status.ok() && message.has_registration())
    status = absl::InvalidArgumentError(
        absl::StrCat("node ", node->id.value(), " registered twice on one stream"));
  for (const v1::NodeEvent& event : message.events()) {
    if (!status.ok()) break;
    if (event.has_blocks_stored() || event.has_blocks_removed())
      status = OnBlocks(*node, event);
    else if (event.has_blocks_offered())
      status = OnBlocksOffered(*node, event.blocks_offered());
    else if (event.has_tokens())
      status = OnTokens(*node, event.tokens(), now);
    else
      OnNodeEvent(*node, event, now);
  }
  if (status.ok()) {
    // After the events: the report includes what they say.
    if (message.has_load()) fleet_.OnLoad(*node, message.load());
    if (message.has_counters()) node->counters = message.counters();
  }
  SettleTouched(now);
  if (!status.ok()) Disconnect(key, status, now);
  PlaceQueued(now);
}

absl::Status RouterCoreImpl::OnBlocks(Node& node, const v1::NodeEvent& event) {
  const bool stored = event.has_blocks_stored();
  const auto hashes =
      kv::UnpackHashes(stored ? event.blocks_stored().hashes() : event.blocks_removed().hashes());
  if (!hashes.ok())
    return absl::InvalidArgumentError(
        absl::StrCat("node ", node.id.value(), ": ", hashes.status().message()));
  if (stored)
    index_.Store(node.slot, *hashes);
  else
    index_.Remove(node.slot, *hashes);
  return absl::OkStatus();
}

template <typename Event>
void RouterCoreImpl::Dispatch(NodeKey key, const v1::NodeEvent& event, const Event& body,
                              absl::Time now) {
  Serial serial = 0;
  RequestMachine* machine = FindSequence(body.leg(), serial);
  if (machine == nullptr) return;
  machine->OnEvent(key, event, now);
  touched_.push_back(serial);
}

absl::Status RouterCoreImpl::OnTokens(const Node& node, const v1::TokensGenerated& tokens,
                                      absl::Time now) {
  const auto on_step = [&](const v1::TokensGenerated::Step& step) {
    Serial serial = 0;
    RequestMachine* machine = FindSequence(step.leg(), serial);
    if (machine == nullptr) return;
    machine->OnTokens(node.key, step, now);
    touched_.push_back(serial);
  };
  for (const v1::TokensGenerated::Step& step : tokens.steps()) on_step(step);
  const v1::TokensGenerated::Plain& plain = tokens.plain();
  const int count = plain.leg_numbers_size();
  for (const int other : {plain.leg_attempts_size(), plain.token_ids_size(), plain.indices_size(),
                          plain.logprobs_size()}) {
    if (other != count)
      return absl::InvalidArgumentError(absl::StrCat("node ", node.id.value(), ": a list of ",
                                                     other, " beside ", count, " legs' tokens"));
  }
  if (count == 0) return absl::OkStatus();
  v1::TokensGenerated::Step& step = plain_step_;
  v1::Leg& leg = *step.mutable_leg();
  v1::GeneratedToken& token = step.tokens().empty() ? *step.add_tokens() : *step.mutable_tokens(0);
  for (int i = 0; i < count; ++i) {
    leg.set_number(plain.leg_numbers(i));
    leg.set_attempt(plain.leg_attempts(i));
    token.set_token_id(plain.token_ids(i));
    token.set_index(plain.indices(i));
    token.set_logprob(plain.logprobs(i));
    on_step(step);
  }
  return absl::OkStatus();
}

void RouterCoreImpl::OnNodeEvent(Node& node, const v1::NodeEvent& event, absl::Time now) {
  switch (event.event_case()) {
    case v1::NodeEvent::kReserved:
      return Dispatch(node.key, event, event.reserved(), now);
    case v1::NodeEvent::kRefused:
      return Dispatch(node.key, event, event.refused(), now);
    case v1::NodeEvent::kPrefillFinished:
      return Dispatch(node.key, event, event.prefill_finished(), now);
    case v1::NodeEvent::kPromptScored:
      return Dispatch(node.key, event, event.prompt_scored(), now);
    case v1::NodeEvent::kInstalled:
      return Dispatch(node.key, event, event.installed(), now);
    case v1::NodeEvent::kLegFinished:
      return Dispatch(node.key, event, event.leg_finished(), now);
    case v1::NodeEvent::kLegFailed:
      return Dispatch(node.key, event, event.leg_failed(), now);
    case v1::NodeEvent::kBlocksWanted:
      return OnBlocksWanted(node, event.blocks_wanted());
    case v1::NodeEvent::kDraining:
      node.draining = true;
      Log(LogLevel::kInfo, "node drains", {{"node_id", node.id.value()}});
      return;
    default:
      return;
  }
}

void RouterCoreImpl::Disconnect(NodeKey key, const absl::Status& why, absl::Time now) {
  actions_.disconnects.emplace_back(key, why);
  NodeLost(key, why, now);
}

void RouterCoreImpl::NodeLost(NodeKey key, const absl::Status& why, absl::Time now) {
  NoteTime(now);
  const Node* node = fleet_.Find(key);
  if (node == nullptr) return;
  const std::string id = node->id.value();
  // One that drained has said so before.
  Log(node->draining ? LogLevel::kInfo : LogLevel::kWarning,
      node->draining ? "node left" : "node lost", {{"node_id", id}, {"why", why.ToString()}});
  index_.DropNode(node->slot);
  fleet_.Remove(key);
  // Commands already waiting for its stream would be sent to nobody.
  auto& commands = actions_.commands;
  commands.erase(std::remove_if(commands.begin(), commands.end(),
                                [&](const auto& command) { return command.first == key; }),
                 commands.end());
  const absl::Status lost =
      absl::UnavailableError(absl::StrCat("node ", id, " was lost: ", why.message()));
  std::vector<Serial> running;
  for (auto& [serial, sequence] : sequences_) {
    sequence.machine->OnNodeLost(key, lost, now);
    running.push_back(serial);
  }
  for (const Serial serial : running) Settle(serial, now);
  PlaceQueued(now);
}

// ---- time

void RouterCoreImpl::OnTick(absl::Time now) {
  NoteTime(now);
  for (const NodeKey key : fleet_.Silent(now, options_.node_lost_after))
    Disconnect(
        key,
        absl::UnavailableError(absl::StrCat(
            "nothing was heard for ", absl::FormatDuration(now - fleet_.Find(key)->last_heard))),
        now);
  for (const Serial serial : deadlines_.PopDue(now)) {
    const auto it = sequences_.find(serial);
    if (it == sequences_.end()) continue;
    it->second.machine->OnDeadline(now);
    Settle(serial, now);
  }
  PlaceQueued(now);
}

void RouterCoreImpl::PlaceQueued(absl::Time now) {
  int passed = 0, visited = 0;
  for (auto it = queue_.begin(); it != queue_.end() && visited < kVisitedMax; ++visited) {
    const std::pair<int32_t, Serial> place = *it;
    const Sequence& sequence = sequences_.at(place.second);
    RequestMachine& machine = *sequence.machine;
    const std::optional<PlacementFailure> in_the_way = machine.Place(BesideOf(sequence), now);
    if (!in_the_way.has_value()) {
      queue_.erase(place);
      Settle(place.second, now);
      it = queue_.upper_bound(place);
      continue;
    }
    if (*in_the_way == PlacementFailure::kNoDecodeNode) return;
    // One that no node present can hold does not hold up others.
    if (*in_the_way == PlacementFailure::kNoRoom &&
        (machine.waited(now) > kFirstInLineAfter || ++passed >= kPassedMax))
      return;
    ++it;
  }
}

v1::GetStatusResponse RouterCoreImpl::GetStatus(absl::Time now) const {
  v1::GetStatusResponse status;
  status.set_router_id(options_.router_id);
  status.set_version(options_.version);
  status.set_uptime_s(absl::ToDoubleSeconds(now - started_.value_or(now)));
  fleet_.FillStatus(now, status);
  v1::RouterStatus& router = *status.mutable_router();
  router.set_requests_running(requests_running());
  router.set_requests_queued(requests_queued());
  router.set_requests_finished(counters_.requests_finished);
  router.set_requests_failed(counters_.requests_failed);
  router.set_index_blocks(index_.hashes());
  router.set_duplicate_tokens(counters_.duplicate_tokens);
  router.set_diverged_tokens(counters_.diverged_tokens);
  router.set_sequences_moved(counters_.sequences_moved);
  router.set_kv_tokens_moved(counters_.kv_tokens_moved);
  router.set_kv_tokens_recomputed(counters_.kv_tokens_recomputed);
  router.set_fleet_streams_refused(streams_refused_);
  return status;
}

std::array<int64_t, 5> RouterCoreImpl::requests_by_state() const {
  std::array<int64_t, 5> counts = {};
  for (const auto& [serial, sequence] : sequences_) {
    const auto state = static_cast<size_t>(sequence.machine->state());
    if (state < counts.size()) ++counts[state];
  }
  return counts;
}

RouterActions RouterCoreImpl::TakeActions() {
  // As many events as now may come next time: growing moves them all. A call that finds nothing
  // leaves the room as it is.
  constexpr size_t kRoomMax = 1024;
  if (actions_.commands.empty() && actions_.client_events.empty() && actions_.disconnects.empty())
    return {};
  RouterActions taken = std::exchange(actions_, {});
  actions_.client_events.reserve(std::min(taken.client_events.size(), kRoomMax));
  return taken;
}

}  // namespace tandem::router
