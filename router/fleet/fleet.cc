#include "router/fleet/fleet.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutation.h"
#include "common/base/status_macros.h"
#include "common/rpc/convert.h"
#include "common/rpc/cost_convert.h"
#include "common/telemetry/log.h"
#include "router/fleet/lending_sums.h"
#include "router/fleet/registration.h"

namespace tandem::router {
namespace {

// A single failure may be chance. The backoff is long enough for a link to come back, and short
// enough to use it soon after.
constexpr int kFailuresBeforeBackoff = 2;
constexpr absl::Duration kBackoffMin = absl::Seconds(1), kBackoffMax = absl::Seconds(16);

v1::NodeStatus StatusOf(const Node& node) {
  v1::NodeStatus status;
  status.set_node_id(node.id.value());
  status.set_role(RoleName(node.role));
  status.set_state(node.draining ? "draining" : "ready");
  *status.mutable_load() = node.load;
  *status.mutable_counters() = node.counters;
  status.set_transport(node.transport);
  status.set_incarnation(node.incarnation.value());
  if (node.step_cost.has_value()) *status.mutable_step_cost() = rpc::ToWire(*node.step_cost);
  if (node.storage_cost.has_value())
    *status.mutable_storage_cost() = rpc::ToWire(*node.storage_cost);
  status.set_max_batch_tokens(node.max_batch_tokens);
  return status;
}

v1::NodePairStatus StatusOf(const NodePair& pair) {
  v1::NodePairStatus status = pair.status;
  status.set_fixed_ms(pair.cost.fixed_us() / 1e3);
  status.set_bytes_per_second(pair.cost.bytes_per_second());
  status.set_rate_relative_error(pair.cost.relative_error());
  status.set_rate_samples(pair.cost.samples());
  return status;
}

// A sum of bytes that only rises, and stays at the largest number.
int64_t SumOfBytes(int64_t sum, int64_t reported) {
  return sum + std::clamp<int64_t>(reported, 0, std::numeric_limits<int64_t>::max() - sum);
}

int64_t LoadFigure(int64_t reported) {
  return std::clamp<int64_t>(reported, 0, Fleet::kLoadFigureMax);
}

// Bounds what the router computes with or keeps. The rest is shown as the node said it.
void BoundLoad(v1::NodeLoad& load) {
  load.set_blocks_free(LoadFigure(load.blocks_free()));
  load.set_blocks_cached(LoadFigure(load.blocks_cached()));
  load.set_blocks_used(LoadFigure(load.blocks_used()));
  load.set_blocks_lent(LoadFigure(load.blocks_lent()));
  load.set_sequences_running(LoadFigure(load.sequences_running()));
  load.set_sequences_waiting(LoadFigure(load.sequences_waiting()));
  load.set_prefill_tokens_waiting(LoadFigure(load.prefill_tokens_waiting()));
  auto& debts = *load.mutable_debts();
  if (TANDEM_MUTATED(kDebtsUnheard)) debts.Clear();
  if (debts.size() > Fleet::kDebtsMax)
    debts.DeleteSubrange(Fleet::kDebtsMax, debts.size() - Fleet::kDebtsMax);
  for (v1::Debt& debt : debts) {
    if (debt.creditor_node_id().size() > kNodeIdBytesMax)
      debt.mutable_creditor_node_id()->resize(kNodeIdBytesMax);
    debt.set_blocks(LoadFigure(debt.blocks()));
    debt.set_loans(LoadFigure(debt.loans()));
  }
}

}  // namespace

absl::StatusOr<std::optional<NodeKey>> Fleet::CheckJoin(
    NodeKey key, const v1::Registration& registration) const {
  RETURN_IF_ERROR(CheckRegistration(registration, model_));
  const std::string& id = registration.node_id();
  if (by_key_.contains(key))
    return absl::InvalidArgumentError(
        absl::StrCat("stream ", key.value(), " of node ", id, " has registered already"));
  std::optional<NodeKey> replaced;
  if (const auto it = by_id_.find(NodeId(id)); it != by_id_.end()) {
    const uint64_t connected = it->second->incarnation.value();
    if (registration.incarnation() < connected)
      return absl::FailedPreconditionError(
          absl::StrCat("node ", id, ": incarnation ", registration.incarnation(), " is older than ",
                       connected, ", which is connected"));
    replaced = it->second->key;
  }
  const int64_t others = size() - (replaced.has_value() ? 1 : 0);
  if (others >= options_.nodes_max)
    return absl::ResourceExhaustedError(absl::StrCat("node ", id, ": this router has ", others,
                                                     " nodes, at most ", options_.nodes_max));
  if (others == 0) return replaced;
  RETURN_IF_ERROR(CheckNumerics(registration));
  if (registration.block_tokens() != block_tokens_)
    return absl::FailedPreconditionError(absl::StrCat("node ", id, " has blocks of ",
                                                      registration.block_tokens(),
                                                      " tokens, the fleet has ", block_tokens_));
  return replaced;
}

absl::Status Fleet::CheckNumerics(const v1::Registration& registration) const {
  if (registration.numerics_id() == first_numerics_id_) return absl::OkStatus();
  const std::string differ =
      absl::StrCat("node ", registration.node_id(), " has numerics id ", registration.numerics_id(),
                   ", the fleet has ", first_numerics_id_);
  if (!options_.allow_mixed_numerics) return absl::FailedPreconditionError(differ);
  const auto named = [](absl::string_view contents, int64_t bytes) {
    return contents.empty()
               ? std::string("nothing that other numerics understand")
               : absl::StrCat("\"", contents.substr(0, 128), "\" in ", bytes, " bytes");
  };
  if (kv_contents_.empty() || registration.kv_contents() != kv_contents_ ||
      registration.kv_bytes_per_block() != kv_bytes_per_block_) {
    return absl::FailedPreconditionError(
        absl::StrCat(differ, "; mixed numerics are allowed, but its blocks hold ",
                     named(registration.kv_contents(), registration.kv_bytes_per_block()),
                     " and the fleet's hold ", named(kv_contents_, kv_bytes_per_block_)));
  }
  Log(LogLevel::kWarning, "a node with another numerics id joined: answers are not reproducible",
      {{"node_id", registration.node_id()},
       {"numerics_id", registration.numerics_id()},
       {"fleet", first_numerics_id_},
       {"kv", kv_contents_},
       {"order", registration.kv_order()}});
  return absl::OkStatus();
}

Node& Fleet::Join(NodeKey key, const v1::Registration& registration, absl::Time now) {
  const NodeId id(registration.node_id());
  TANDEM_CHECK(!by_key_.contains(key) && !by_id_.contains(id), "node ", id.value());
  if (empty()) {
    first_numerics_id_ = registration.numerics_id();
    kv_contents_ = options_.allow_mixed_numerics ? registration.kv_contents() : "";
    kv_bytes_per_block_ = registration.kv_bytes_per_block();
    numerics_id_ = kv_contents_.empty() ? first_numerics_id_ : absl::StrCat("mixed ", kv_contents_);
    block_tokens_ = registration.block_tokens();
    ++generation_;
  }
  auto node = std::make_unique<Node>();
  node->key = key;
  node->slot = TakeSlot();
  node->id = id;
  node->incarnation = Incarnation(registration.incarnation());
  node->role = registration.role();
  node->host = registration.host();
  node->transfer_address = registration.transfer_address();
  node->context_tokens = registration.context_tokens();
  node->block_tokens = registration.block_tokens();
  node->num_blocks = registration.num_blocks();
  node->max_sequences = registration.max_sequences();
  node->max_batch_tokens = registration.max_batch_tokens();
  node->queue_order = rpc::FromWire(registration.queue_order());
  node->numerics_id = registration.numerics_id();
  node->lending_address = registration.lending_address();
  // As common/lending/link_address.h writes it.
  node->lends_over_tcp = absl::StrContains(registration.lending_address(), " tcp:");
  node->lend_blocks_max = registration.lend_blocks_max();
  node->lending_unit_tokens = registration.lending_unit_tokens();
  node->kv_bytes_per_token = static_cast<double>(registration.kv_bytes_per_block()) /
                             static_cast<double>(std::max(1, node->block_tokens));
  if (const NodeGroup group = GroupOf(node->role); group != kNoGroup)
    node->default_cost = &default_costs_[group];
  node->last_heard = now;
  node->load.set_blocks_total(node->num_blocks);
  node->load.set_blocks_free(node->num_blocks);
  if (node->role == v1::NODE_ROLE_DECODE) decode_node_seen_ = true;
  lost_.erase(std::remove_if(lost_.begin(), lost_.end(),
                             [&](const LostNode& l) { return l.status.node_id() == id.value(); }),
              lost_.end());
  if (node->role == v1::NODE_ROLE_DECODE) {
    decode_capacities_.insert(node->capacity_tokens());
    decode_prompt_capacities_.insert(node->prompt_capacity_tokens());
    decode_blocks_ += node->num_blocks;
  }
  order_.Update(*node);
  if (by_slot_.size() <= node->slot) by_slot_.resize(node->slot + 1);
  by_slot_[node->slot] = node.get();
  by_id_[id] = node.get();
  Node& joined = *(by_key_[key] = std::move(node));
  lends_ |= joined.lend_blocks_max > 0;
  if (joined.lend_blocks_max > 0) UpdateBorrowing();
  return joined;
}

int64_t Fleet::SpareOf(const Node& node) {
  return node.draining || node.legs_beyond_pool > 0 ? 0 : node.lend_blocks_max;
}

int64_t Fleet::SpareBeside(const Node& prefill, const Node& decode, int64_t prompt_tokens) const {
  int64_t spare = 0;
  for (const auto& [key, node] : by_key_) {
    const bool beside = node.get() != &prefill && node.get() != &decode;
    if (beside && node->CanLendTo(prefill) && node->CanLendTo(decode)) spare += SpareOf(*node);
  }
  const int64_t needed_elsewhere = blocks_beyond_pools_ - decode.blocks_beyond(prompt_tokens);
  return std::max<int64_t>(0, spare * kBorrowedShareMax / 100 - needed_elsewhere);
}

void Fleet::UpdateBorrowing() {
  const auto lent_by = [](const Node& node) {
    return LentBlocks{.most = node.draining ? 0 : node.lend_blocks_max, .spare = SpareOf(node)};
  };
  LendingSums sums;
  for (const auto& [key, node] : by_key_)
    if (node->lend_blocks_max > 0) sums.Add(*node, lent_by(*node));
  for (auto& [key, node] : by_key_) {
    if (node->lending_address.empty()) continue;
    const LentBlocks others = sums.ToDebtor(*node, lent_by(*node));
    if (node->role != v1::NODE_ROLE_DECODE) {
      node->borrow_blocks_max = others.most;
      continue;
    }
    decode_capacities_.erase(decode_capacities_.find(node->capacity_tokens()));
    decode_prompt_capacities_.erase(decode_prompt_capacities_.find(node->prompt_capacity_tokens()));
    node->borrow_blocks_max = others.most;
    decode_prompt_capacities_.insert(node->prompt_capacity_tokens());
    decode_capacities_.insert(node->capacity_tokens());
    const int64_t spare = others.spare * kBorrowedShareMax / 100;
    node->borrow_blocks_now =
        node->legs_beyond_pool > 0 ? 0 : std::max<int64_t>(0, spare - blocks_beyond_pools_);
    order_.Update(*node);
  }
}

void Fleet::BeyondPoolPlaced(NodeKey key, int64_t blocks) {
  blocks_beyond_pools_ += blocks;
  if (Node* node = Find(key); node != nullptr) ++node->legs_beyond_pool;
  UpdateBorrowing();
}

void Fleet::BeyondPoolEnded(NodeKey key, int64_t blocks) {
  blocks_beyond_pools_ -= blocks;
  if (Node* node = Find(key); node != nullptr) --node->legs_beyond_pool;
  UpdateBorrowing();
}

void Fleet::Remove(NodeKey key) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return;
  const Node& node = *it->second;
  LostNode lost{StatusOf(node), node.last_heard};
  lost.status.set_state("lost");
  lost_.push_back(std::move(lost));
  if (lost_.size() > kLostNodesKept) lost_.pop_front();
  free_slots_.push_back(node.slot);
  order_.Remove(node);
  by_slot_[node.slot] = nullptr;
  if (node.role == v1::NODE_ROLE_DECODE) {
    decode_capacities_.erase(decode_capacities_.find(node.capacity_tokens()));
    decode_prompt_capacities_.erase(decode_prompt_capacities_.find(node.prompt_capacity_tokens()));
    decode_blocks_ -= node.num_blocks;
  }
  for (auto& [other_key, other] : by_key_) {
    other->links_in.erase(node.slot);
    other->creditor_links.erase(node.slot);
    other->failures_in.erase(node.id);
  }
  const bool lent = node.lend_blocks_max > 0;
  by_id_.erase(node.id);
  by_key_.erase(it);
  if (lent) UpdateBorrowing();
  if (empty()) {
    numerics_id_.clear();
    first_numerics_id_.clear();
    kv_contents_.clear();
    kv_bytes_per_block_ = 0;
    block_tokens_ = 0;
    ++generation_;
  }
}

NodeSlot Fleet::TakeSlot() {
  if (free_slots_.empty()) return next_slot_++;
  const NodeSlot slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

Node* Fleet::Find(NodeKey key) {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? nullptr : it->second.get();
}

const Node* Fleet::Find(NodeKey key) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? nullptr : it->second.get();
}

std::vector<const Node*> Fleet::nodes() const {
  std::vector<const Node*> all;
  all.reserve(by_id_.size());
  for (const auto& [id, node] : by_id_) all.push_back(node);
  return all;
}

void Fleet::OnLoad(Node& node, const v1::NodeLoad& load) {
  node.load = load;
  BoundLoad(node.load);
  node.blocks_unreported = 0;
  FadeStepCost(node);
  order_.UpdateAndShuffle(node);
}

void Fleet::SetDraining(Node& node) {
  node.draining = true;
  order_.Update(node);
  if (node.lend_blocks_max > 0) UpdateBorrowing();
}

void Fleet::ChangeLoad(NodeKey key, absl::FunctionRef<void(Node&)> change) {
  Node* node = Find(key);
  if (node == nullptr) return;
  change(*node);
  order_.Update(*node);
}

void Fleet::DecodePlaced(NodeKey key, int64_t blocks, absl::Duration step_goal) {
  ChangeLoad(key, [&](Node& node) {
    ++node.legs;
    if (step_goal != absl::InfiniteDuration()) ++node.step_goals[step_goal];
    node.blocks_unconfirmed += blocks;
  });
}

void Fleet::DecodeReserved(NodeKey key, int64_t blocks) {
  ChangeLoad(key, [&](Node& node) {
    node.blocks_unconfirmed -= blocks;
    node.blocks_unreported += blocks;
  });
}

void Fleet::DecodeEnded(NodeKey key, int64_t blocks_unconfirmed, absl::Duration step_goal) {
  ChangeLoad(key, [&](Node& node) {
    --node.legs;
    const auto goal = node.step_goals.find(step_goal);
    if (goal != node.step_goals.end() && --goal->second == 0) node.step_goals.erase(goal);
    node.blocks_unconfirmed -= blocks_unconfirmed;
  });
}

PromptWork::Entry Fleet::PrefillPlaced(NodeKey key, int64_t tokens, int64_t prompt_tokens,
                                       const request::Urgency& urgency) {
  PromptWork::Entry work;
  ChangeLoad(key, [&](Node& node) {
    work.us = node.PromptUs(std::max<int64_t>(0, prompt_tokens - tokens), tokens);
    work.rank = node.RankOf(urgency, work.us, now_);
    ++node.legs;
    node.prefill_tokens_ahead += tokens;
    node.work.Add(work, now_);
  });
  return work;
}

void Fleet::PrefillEnded(NodeKey key, int64_t tokens, const PromptWork::Entry& work) {
  ChangeLoad(key, [&](Node& node) {
    --node.legs;
    node.prefill_tokens_ahead -= tokens;
    node.work.Remove(work, now_);
  });
}

PromptWork::Entry Fleet::LocalPrefillBegan(NodeKey key, double us,
                                           const request::Urgency& urgency) {
  PromptWork::Entry work = {.us = us};
  ChangeLoad(key, [&](Node& node) {
    work.rank = node.RankOf(urgency, us, now_);
    node.work.Add(work, now_);
  });
  return work;
}

void Fleet::LocalPrefillEnded(NodeKey key, const PromptWork::Entry& work) {
  ChangeLoad(key, [&](Node& node) { node.work.Remove(work, now_); });
}

void Fleet::PrefixChecked(NodeKey key, int64_t claimed, int64_t found) {
  if (Node* node = Find(key); node != nullptr) node->record.OnPrefix(claimed, found, now_);
}

void Fleet::LegFailed(NodeKey key, const absl::Status& why) {
  if (absl::IsUnavailable(why) || absl::IsResourceExhausted(why) || absl::IsCancelled(why)) return;
  if (absl::IsDataLoss(why)) return;  // the damaged block may have come from another node
  if (Node* node = Find(key); node != nullptr) node->record.OnFailedLeg(now_);
}

void Fleet::FirstTokenCame(NodeKey computed_by, absl::Duration predicted, absl::Duration took) {
  if (Node* node = Find(computed_by); node != nullptr)
    node->record.OnFirstToken(predicted, took, now_);
}

std::vector<NodeKey> Fleet::Silent(absl::Time now, absl::Duration lost_after) const {
  std::vector<NodeKey> silent;
  for (const auto& [id, node] : by_id_)
    if (now - node->last_heard > lost_after) silent.push_back(node->key);
  return silent;
}

void Fleet::KvTransferDone(NodeKey from, NodeKey to, const v1::Installed& installed) {
  v1::FetchedKv received;
  received.set_kv_bytes_received(installed.kv_bytes_received());
  received.set_kv_transfer_ms(installed.kv_transfer_ms());
  received.set_kv_receive_ms(installed.kv_receive_ms());
  received.set_transport(installed.transport());
  KvTransferDone(from, to, received);
}

void Fleet::KvTransferDone(NodeKey from, NodeKey to, const v1::FetchedKv& received) {
  const Node* sender = Find(from);
  Node* receiver = Find(to);
  if (sender == nullptr || receiver == nullptr) return;
  if (received.transport().size() > kTransportNameMax) return;
  receiver->failures_in.erase(sender->id);
  NodePair& pair = receiver->links_in[sender->slot];
  // A transfer that was too short for the receiver's clock has 0 ms, and is rejected.
  const auto verdict =
      pair.cost.Observe(received.kv_bytes_received(), received.kv_receive_ms() * 1e3);
  if (verdict != cost::OnlineFit::Verdict::kRejected) pair.sampled = all_links_sampled_ = now_;
  all_links_.Observe(received.kv_bytes_received(), received.kv_receive_ms() * 1e3);
  v1::NodePairStatus& link = pair.status;
  link.set_from_node(sender->id.value());
  link.set_to_node(receiver->id.value());
  link.set_transport(received.transport());
  link.set_kv_transfers(link.kv_transfers() + 1);
  link.set_kv_bytes(SumOfBytes(link.kv_bytes(), received.kv_bytes_received()));
  const double ms = received.kv_transfer_ms();
  link.set_last_transfer_ms(std::isfinite(ms) ? std::max(ms, 0.0) : 0);
}

void Fleet::KvTransferFailed(NodeKey from, NodeKey to, absl::Time now) {
  const Node* sender = Find(from);
  Node* receiver = Find(to);
  if (sender == nullptr || receiver == nullptr) return;
  TransferFailures& failed = receiver->failures_in[sender->id];
  const int beyond = ++failed.in_a_row - kFailuresBeforeBackoff;
  if (beyond < 0) return;
  failed.backoff_until = now + std::min(kBackoffMin * (1 << std::min(beyond, 10)), kBackoffMax);
  Log(LogLevel::kWarning, "KV transfers between two nodes failed; the pair is left out for a while",
      {{"from", sender->id.value()},
       {"to", receiver->id.value()},
       {"failures", failed.in_a_row},
       {"for", absl::FormatDuration(failed.backoff_until - now)}});
}

bool Fleet::InBackoff(const Node& from, const Node& to, absl::Time now) {
  const auto failed = to.failures_in.find(from.id);
  return failed != to.failures_in.end() && now < failed->second.backoff_until;
}

void Fleet::FillStatus(absl::Time now, v1::GetStatusResponse& status) const {
  for (const auto& [id, node] : by_id_) {
    for (const auto& [sender, pair] : node->links_in) *status.add_links() = StatusOf(pair);
    v1::NodeStatus& out = *status.add_nodes() = StatusOf(*node);
    out.set_last_heard_ms(absl::ToDoubleMilliseconds(now - node->last_heard));
    for (const auto& [creditor, link] : node->creditor_links) {
      v1::CreditorLink& told = *out.add_creditor_links() = rpc::ToWire(link.cost);
      told.set_creditor_node_id(At(creditor)->id.value());
      told.set_creditor_incarnation(At(creditor)->incarnation.value());
    }
  }
  for (const LostNode& lost : lost_) {
    v1::NodeStatus& out = *status.add_nodes() = lost.status;
    out.set_last_heard_ms(absl::ToDoubleMilliseconds(now - lost.last_heard));
  }
}

}  // namespace tandem::router
