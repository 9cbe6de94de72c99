#include "router/core/router_core.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutation.h"
#include "common/base/status_macros.h"
#include "common/rpc/cost_convert.h"
#include "common/rpc/retry_after.h"
#include "common/rpc/shutdown_text.h"
#include "common/telemetry/log.h"
#include "router/core/leg_report.h"
#include "router/fleet/registration.h"

namespace tandem::router {
namespace {

// After a node joined or left, others that restart with it have joined, too.
constexpr absl::Duration kNodesSettle = absl::Seconds(10);

// After a longer time between two ticks this router itself was stopped or held up. What nodes said
// meanwhile may still wait to be read.
constexpr absl::Duration kTickLateMax = absl::Seconds(1);

}  // namespace

RouterCore::RouterCore(const RouterOptions& options, const ModelIdentity& model, Random& random)
    : options_(options),
      model_(model),
      // The other half is for finding room.
      retries_(random, options.queue_deadline / 2),
      hasher_(options.block_key),
      fleet_(model, {options.nodes_max, options.allow_mixed_numerics}, random),
      index_({.entries_max = options.index_blocks_max,
              .slots_max = static_cast<size_t>(options.nodes_max),
              .seed = random.Next()}),
      placement_({.local_prefill_tokens_max = options.local_prefill_tokens_max,
                  .fetch_tokens_min = options.fetch_tokens_min,
                  .policy = options.placement,
                  .explains = options.explains_placements,
                  .prefill_wait_max = options.prefill_wait_max},
                 fleet_, index_, random),
      table_(
          {options_, model_, fleet_, index_, placement_, actions_, counters_, retries_, hasher_}),
      migration_(fleet_, index_, actions_),
      loans_(fleet_, index_, actions_),
      planner_(fleet_, actions_),
      incarnation_(random.Next()) {}

void RouterCore::NoteTime(absl::Time now) {
  if (!started_.has_value()) started_ = now;
  fleet_.SetNow(now);
}

// ---- clients

absl::Status RouterCore::CheckAdmission(const RequestInput& input, absl::Time now) const {
  const std::string& id = input.id.value();
  if (id.empty() || input.prompt->empty() || input.stop->max_tokens < 1)
    return absl::InvalidArgumentError(absl::StrCat(
        "request \"", id, "\": prompt of ", input.prompt->size(), " tokens and max_tokens ",
        input.stop->max_tokens, ", expected an id and at least 1 of each"));
  if (table_.Contains(input.id))
    return absl::AlreadyExistsError(absl::StrCat("request ", id, " is running"));
  if (input.sequences < 1 || input.sequences > kSequencesMax)
    return absl::InvalidArgumentError(absl::StrCat("request ", id, ": ", input.sequences,
                                                   " sequences, expected 1 to ", kSequencesMax));
  const int64_t needed = input.TokensNeeded();
  if (needed > model_.context_tokens)
    return absl::InvalidArgumentError(absl::StrCat("prompt and answer need ", needed,
                                                   " tokens, the model's context is ",
                                                   model_.context_tokens));
  if (NodesSettled(now)) RETURN_IF_ERROR(CheckCapacity(input));
  return SharesSettled(now) ? CheckShare(input) : absl::OkStatus();
}

absl::Status RouterCore::CheckRoom(const RequestInput& input, absl::Time now) {
  const int64_t sequences = table_.sequences();
  const int64_t too_many = sequences + input.sequences_at_once() - options_.requests_max;
  if (too_many > 0 && !TANDEM_MUTATED(kRequestsUnbounded))
    return rpc::WithRetryAfter(
        absl::ResourceExhaustedError(
            absl::StrCat("this router runs ", sequences, " sequences; ", input.sequences_at_once(),
                         " more would exceed its limit of ", options_.requests_max)),
        table_.RetrySeconds(too_many, now));
  const int64_t its_bytes = input.HeldBytesMax();
  if (its_bytes > options_.request_bytes_max)
    return absl::InvalidArgumentError(absl::StrCat(
        "the request may come to hold ", its_bytes, " bytes, ", input.LogprobBytesMax(),
        " of them log-probabilities, expected at most ", options_.request_bytes_max,
        ": ask for fewer log-probabilities or answers, or for a lower max_tokens"));
  const int64_t bytes = table_.held_bytes();
  const int64_t too_many_bytes = bytes + its_bytes - options_.request_bytes_max;
  if (too_many_bytes > 0) {
    const double share = static_cast<double>(too_many_bytes) / static_cast<double>(bytes + 1);
    const auto ending = static_cast<int64_t>(std::ceil(share * static_cast<double>(sequences)));
    return rpc::WithRetryAfter(
        absl::ResourceExhaustedError(
            absl::StrCat("this router's requests may hold up to ", bytes, " bytes; ", its_bytes,
                         " more would exceed its limit of ", options_.request_bytes_max)),
        table_.RetrySeconds(std::clamp<int64_t>(ending, 1, sequences + 1), now));
  }
  return absl::OkStatus();
}

bool RouterCore::NodesSettled(absl::Time now) const {
  return now - (fleet_.lends() ? nodes_changed_ : decode_node_left_) > kNodesSettle;
}

bool RouterCore::SharesSettled(absl::Time now) const { return now - nodes_changed_ > kNodesSettle; }

absl::Status RouterCore::CheckShare(const RequestInput& input) const {
  const double share =
      input.share.kv_share * static_cast<double>(fleet_.decode_blocks() * fleet_.block_tokens());
  const auto prompt = static_cast<int64_t>(input.prompt->size());
  if (share == 0 || static_cast<double>(prompt + 1) <= share) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("prompt: ", prompt, " tokens, expected fewer: ", input.share.tenant,
                   "'s share of the KV blocks holds ", static_cast<int64_t>(share), " tokens"));
}

absl::Status RouterCore::CheckCapacity(const RequestInput& input) const {
  const int64_t capacity = fleet_.decode_capacity_tokens();
  if (capacity == 0) return absl::OkStatus();  // no node has joined
  const int64_t needed = input.TokensNeeded();
  if (needed > capacity)
    return absl::InvalidArgumentError(absl::StrCat("prompt and answer need ", needed,
                                                   " tokens of KV, the largest decode node holds ",
                                                   capacity));
  const int64_t prompt = std::ssize(*input.prompt);
  const int64_t prompt_capacity = fleet_.decode_prompt_capacity_tokens();
  // Placement asks for room for the first token, too.
  if (prompt + 1 > prompt_capacity)
    return absl::InvalidArgumentError(absl::StrCat(
        "the prompt has ", prompt, " tokens, the largest decode node takes prompts of up to ",
        prompt_capacity - 1, " tokens, with what other nodes lend"));
  return absl::OkStatus();
}

int64_t RouterCore::AtMostTheModels(int64_t capacity) const {
  return capacity > 0 ? std::min<int64_t>(capacity, model_.context_tokens) : model_.context_tokens;
}

int64_t RouterCore::context_tokens() const {
  return AtMostTheModels(fleet_.decode_capacity_tokens());
}

int64_t RouterCore::prompt_tokens() const {
  // The first token takes room, too.
  return AtMostTheModels(fleet_.decode_prompt_capacity_tokens() - 1);
}

absl::Status RouterCore::Submit(RequestInput input, absl::Time now) {
  NoteTime(now);
  RETURN_IF_ERROR(CheckAdmission(input, now));
  RETURN_IF_ERROR(CheckRoom(input, now));
  input.arrived = now;
  return table_.Submit(std::move(input), now);
}

void RouterCore::Finish(const RequestId& id, request::FinishReason reason, absl::Time now) {
  NoteTime(now);
  table_.Finish(id, reason, now);
}

void RouterCore::FinishSequence(const RequestId& id, int32_t sequence_index,
                                request::FinishReason reason, absl::Time now) {
  NoteTime(now);
  table_.FinishSequence(id, sequence_index, reason, now);
}

// ---- nodes

absl::StatusOr<v1::Welcome> RouterCore::NodeJoined(NodeKey key,
                                                   const v1::Registration& registration,
                                                   absl::Time now) {
  NoteTime(now);
  if (TANDEM_MUTATED(kRejoinRefused) && decode_node_left_ > absl::InfinitePast())
    return absl::UnavailableError("this router lets no node join any more");
  ASSIGN_OR_RETURN(const std::vector<kv::BlockHash> hashes,
                   kv::UnpackHashes(registration.cached_blocks()));
  ASSIGN_OR_RETURN(const std::optional<NodeKey> replaced, fleet_.CheckJoin(key, registration));
  RETURN_IF_ERROR(CheckBlockNames(registration, options_.block_key));
  if (replaced.has_value())
    Disconnect(*replaced,
               absl::UnavailableError(
                   absl::StrCat("node ", registration.node_id(), " opened a newer stream")),
               now);
  nodes_changed_ = now;
  const Node& node = fleet_.Join(key, registration, now);
  index_.AddNode(node.slot, node.group(), node.num_blocks + registration.stored_blocks_max());
  index_.Store(node.slot, hashes);
  Log(LogLevel::kInfo, "node joined",
      {{"node_id", node.id.value()},
       {"role", RoleName(node.role)},
       {"blocks", node.num_blocks},
       {"cached_blocks", hashes.size()}});
  table_.PlaceQueued(now);

  v1::Welcome welcome;
  welcome.set_router_id(options_.router_id);
  welcome.set_router_incarnation(incarnation_);
  welcome.set_heartbeat_interval_s(absl::ToDoubleSeconds(options_.heartbeat_interval));
  return welcome;
}

absl::Status RouterCore::CheckSequenceNumber(Node& node, const v1::NodeMessage& message) const {
  // The registration is number 1 and comes through NodeJoined. 0 = the stream is not numbered.
  const uint64_t number = message.sequence_number();
  if (number == 0) return absl::OkStatus();
  const uint64_t expected = node.last_sequence_number + 1;
  if (node.last_sequence_number != 0 && number != expected)
    return absl::DataLossError(absl::StrCat("node ", node.id.value(), " sent message ", number,
                                            ", expected message ", expected));
  node.last_sequence_number = number;
  return absl::OkStatus();
}

void RouterCore::OnNodeMessage(NodeKey key, const v1::NodeMessage& message, absl::Time now) {
  NoteTime(now);
  Node* node = fleet_.Find(key);
  if (node == nullptr) return;
  node->last_heard = now;
  absl::Status status = CheckSequenceNumber(*node, message);
  // FleetService lets none of these through; other callers may.
  if (status.ok() && message.has_registration())
    status = absl::InvalidArgumentError(
        absl::StrCat("node ", node->id.value(), " registered twice on one stream"));
  for (const v1::NodeEvent& event : message.events()) {
    if (!status.ok()) break;
    status = OnNodeEvent(*node, event, now);
  }
  if (status.ok()) {
    // After the events: the report includes what they say.
    if (message.has_load()) fleet_.OnLoad(*node, message.load());
    if (node->role == v1::NODE_ROLE_DECODE) table_.OnTenantBlocks(key, message);
    if (message.has_counters()) {
      node->counters = message.counters();
      fleet_.OnLendable(*node, message.blocks_lendable());
    }
    status = OnCosts(*node, message);
  }
  table_.SettleTouched(now);
  if (!status.ok()) Disconnect(key, status, now);
  table_.PlaceIfRoomGrew(now);
}

absl::Status RouterCore::OnCosts(Node& node, const v1::NodeMessage& message) {
  const auto named = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(
        absl::StrCat("node ", node.id.value(), ": ", status.message()));
  };
  if (message.has_step_cost()) {
    const auto profile = rpc::FromWire(message.step_cost());
    if (!profile.ok()) return named(profile.status());
    fleet_.OnStepCost(node, *profile);
  }
  if (message.has_storage_cost()) {
    const auto profile = rpc::FromWire(message.storage_cost());
    if (!profile.ok()) return named(profile.status());
    fleet_.OnStorageCost(node, *profile);
  }
  for (int i = 0; i < std::min(message.creditor_links_size(), Fleet::kDebtsMax); ++i) {
    const v1::CreditorLink& link = message.creditor_links(i);
    const auto cost = rpc::FromWire(link);
    if (!cost.ok()) return named(cost.status());
    fleet_.OnCreditorLink(node, NodeId(link.creditor_node_id()),
                          Incarnation(link.creditor_incarnation()), *cost);
  }
  return absl::OkStatus();
}

absl::Status RouterCore::OnBlocks(const Node& node, const v1::NodeEvent& event) {
  const bool stored = event.has_blocks_stored();
  const auto hashes =
      kv::UnpackHashes(stored ? event.blocks_stored().hashes() : event.blocks_removed().hashes());
  if (!hashes.ok())
    return absl::InvalidArgumentError(
        absl::StrCat("node ", node.id.value(), ": ", hashes.status().message()));
  const auto tier_of = [](const v1::BlocksStored& where) {
    if (!where.on_disk()) return Tier::kDevice;
    return where.in_host_memory() ? Tier::kHost : Tier::kDisk;
  };
  if (stored)
    index_.Store(node.slot, *hashes, tier_of(event.blocks_stored()));
  else
    index_.Remove(node.slot, *hashes);
  return absl::OkStatus();
}

template <typename Event>
absl::Status RouterCore::OnLegEvent(const Node& node, const v1::NodeEvent& event, const Event& body,
                                    absl::Time now) {
  table_.OnEvent(node.key, body.leg(), event, now);
  return absl::OkStatus();
}

absl::Status RouterCore::OnLegReport(const Node& node, const v1::NodeEvent& event, absl::Time now) {
  if (event.has_reserved()) return OnLegEvent(node, event, event.reserved(), now);
  if (event.has_prefill_finished()) return OnLegEvent(node, event, event.prefill_finished(), now);
  if (event.has_installed()) return OnLegEvent(node, event, event.installed(), now);
  const v1::LegFinished& finished = event.leg_finished();
  const v1::Leg& leg = finished.leg();
  if (finished.has_lent() && !table_.Runs(leg))
    actions_.lent_reports.push_back(
        {leg.request_id(), {leg.number(), leg.attempt()}, node.id.value(), finished.lent()});
  return OnLegEvent(node, event, finished, now);
}

absl::Status RouterCore::OnTokens(const Node& node, const v1::TokensGenerated& tokens,
                                  absl::Time now) {
  for (const v1::TokensGenerated::Step& step : tokens.steps()) table_.OnTokens(node.key, step, now);
  const v1::TokensGenerated::Plain& plain = tokens.plain();
  const int count = plain.leg_numbers_size();
  for (const int other : {plain.leg_attempts_size(), plain.token_ids_size(), plain.indices_size(),
                          plain.logprobs_size()}) {
    if (other != count)
      return absl::InvalidArgumentError(
          absl::StrCat("node ", node.id.value(), ": TokensGenerated has a list of ", other,
                       " entries, expected ", count, ", one for each leg"));
  }
  if (count == 0) return absl::OkStatus();
  v1::TokensGenerated::Step& step = plain_step_;
  v1::Leg& leg = *step.mutable_leg();
  v1::GeneratedToken& token = step.tokens().empty() ? *step.add_tokens() : *step.mutable_tokens(0);
  const auto* const numbers = plain.leg_numbers().data();
  const auto* const attempts = plain.leg_attempts().data();
  const auto* const ids = plain.token_ids().data();
  const auto* const indices = plain.indices().data();
  const auto* const logprobs = plain.logprobs().data();
  for (int i = 0; i < count; ++i) {
    leg.set_number(numbers[i]);
    leg.set_attempt(attempts[i]);
    token.set_token_id(ids[i]);
    token.set_index(indices[i]);
    token.set_logprob(logprobs[i]);
    table_.OnTokens(node.key, step, now);
  }
  return absl::OkStatus();
}

absl::Status RouterCore::OnNodeEvent(Node& node, const v1::NodeEvent& event, absl::Time now) {
  switch (event.event_case()) {
    case v1::NodeEvent::kRefused:
      return OnLegEvent(node, event, event.refused(), now);
    case v1::NodeEvent::kPromptScored:
      return OnLegEvent(node, event, event.prompt_scored(), now);
    case v1::NodeEvent::kReserved:
    case v1::NodeEvent::kPrefillFinished:
    case v1::NodeEvent::kInstalled:
    case v1::NodeEvent::kLegFinished:
      return OnLegReport(node, BoundedLegReport(event), now);
    case v1::NodeEvent::kLegFailed:
      return OnLegEvent(node, event, event.leg_failed(), now);
    case v1::NodeEvent::kTokens:
      return OnTokens(node, event.tokens(), now);
    case v1::NodeEvent::kBlocksStored:
    case v1::NodeEvent::kBlocksRemoved:
      return OnBlocks(node, event);
    case v1::NodeEvent::kBlocksOffered:
      return migration_.OnBlocksOffered(node, event.blocks_offered());
    case v1::NodeEvent::kBlocksWanted:
      migration_.OnBlocksWanted(node, event.blocks_wanted());
      break;
    case v1::NodeEvent::kLoanWanted:
      return loans_.OnLoanWanted(node, event.loan_wanted(), now);
    case v1::NodeEvent::kLoanOffered:
      loans_.OnLoanOffered(node, event.loan_offered(), now);
      break;
    case v1::NodeEvent::kDraining:
      fleet_.SetDraining(node);
      index_.SetGroup(node.slot, node.group());
      Log(LogLevel::kInfo, "node is draining", {{"node_id", node.id.value()}});
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

void RouterCore::Disconnect(NodeKey key, const absl::Status& why, absl::Time now) {
  actions_.disconnects.emplace_back(key, why);
  NodeLost(key, why, now);
}

void RouterCore::NodeLost(NodeKey key, const absl::Status& why, absl::Time now) {
  NoteTime(now);
  const Node* node = fleet_.Find(key);
  if (node == nullptr) return;
  const std::string id = node->id.value();
  // A node that drains announced its end, so its leaving is no warning. Nor is this router's own.
  if (node->role == v1::NODE_ROLE_DECODE) decode_node_left_ = now;
  const bool ordered = node->draining || why.message() == rpc::kRouterShutsDown;
  Log(ordered ? LogLevel::kInfo : LogLevel::kWarning, ordered ? "node left" : "node lost",
      {{"node_id", id}, {"why", why.ToString()}});
  index_.DropNode(node->slot);
  fleet_.Remove(key);
  nodes_changed_ = now;
  // Commands that still wait for its stream have no receiver any more.
  auto& commands = actions_.commands;
  commands.erase(std::remove_if(commands.begin(), commands.end(),
                                [&](const auto& command) { return command.first == key; }),
                 commands.end());
  const absl::Status lost =
      absl::UnavailableError(absl::StrCat("node ", id, " was lost: ", why.message()));
  table_.OnNodeLost(key, lost, now);
  loans_.OnNodeLost(key, now);
  planner_.OnNodeLost(key);
  table_.PlaceQueued(now);
}

// ---- time

void RouterCore::ForgiveOwnStop(absl::Time now) {
  const absl::Duration late = now - std::exchange(last_tick_, now);
  const absl::Duration heard = std::min(kTickLateMax, options_.node_lost_after / 4);
  if (late > heard && late < absl::InfiniteDuration()) fleet_.ForgiveSilence(late - heard, now);
}

void RouterCore::OnTick(absl::Time now) {
  NoteTime(now);
  ForgiveOwnStop(now);
  for (const NodeKey key : fleet_.Silent(now, options_.node_lost_after))
    Disconnect(
        key,
        absl::UnavailableError(absl::StrCat(
            "the node sent nothing for ", absl::FormatDuration(now - fleet_.Find(key)->last_heard),
            ", expected a heartbeat")),
        now);
  table_.OnTick(now);
  if (waiting_checked_ < nodes_changed_ && NodesSettled(now)) {
    table_.FailWaiting([this](const RequestInput& input) { return CheckCapacity(input); });
    waiting_checked_ = now;
  }
  if (shares_checked_ < nodes_changed_ && SharesSettled(now)) {
    table_.FailWaiting([this](const RequestInput& input) { return CheckShare(input); });
    shares_checked_ = now;
  }
  loans_.OnTick(now);
  table_.PlaceQueued(now);
  if (options_.plan_loans && table_.queued() > 0 && planner_.due(now))
    planner_.OnTick(table_.WaitingTokens(LoanPlanner::kWaitingMax), now);
}

v1::GetStatusResponse RouterCore::GetStatus(absl::Time now) const {
  v1::GetStatusResponse status;
  status.set_router_id(options_.router_id);
  status.set_version(options_.version);
  status.set_uptime_s(absl::ToDoubleSeconds(now - started_.value_or(now)));
  fleet_.FillStatus(now, status);
  v1::RouterStatus& router = *status.mutable_router();
  router.set_requests_running(request_counts().running);
  router.set_requests_queued(request_counts().queued);
  router.set_requests_finished(counters_.requests_finished);
  router.set_requests_failed(counters_.requests_failed);
  router.set_index_blocks(index_.entries());
  router.set_duplicate_tokens(counters_.duplicate_tokens);
  router.set_diverged_tokens(counters_.diverged_tokens);
  router.set_sequences_migrated(counters_.sequences_migrated);
  router.set_kv_tokens_moved(counters_.kv_tokens_moved);
  router.set_kv_tokens_recomputed(counters_.kv_tokens_recomputed);
  router.set_fleet_streams_refused(streams_refused_);
  return status;
}

}  // namespace tandem::router
