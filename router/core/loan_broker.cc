#include "router/core/loan_broker.h"

#include <algorithm>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/cost/loan_time.h"
#include "common/rpc/convert.h"
#include "router/core/lendable_blocks.h"
#include "router/fleet/loan_price.h"

namespace tandem::router {
namespace {

// The free share of a pool is compared in so many parts: it changes with each block.
constexpr double kFreeShares = 8;

// More than the blocks of any loan.
constexpr int64_t kPreferred = int64_t{1} << 32;

// The best nodes of those that are added, whose links are equal: the freest in eighths, then the
// least busy.
class InClass {
 public:
  explicit InClass(size_t most) : most_(most) {}

  void Add(const Node& node) {
    Place place;
    place.free = node.free_fraction();
    place.shares = static_cast<int>(place.free * kFreeShares);
    // Most nodes end here.
    if (places_.size() == most_ && place.shares < places_.back().shares) return;
    place.busy = node.queue_fraction();
    place.node = &node;
    if (places_.size() == most_) {
      if (!(place < places_.back())) return;
      places_.pop_back();
    }
    places_.insert(std::upper_bound(places_.begin(), places_.end(), place), place);
  }
  std::vector<const Node*> best() const {
    std::vector<const Node*> nodes;
    for (const Place& place : places_) nodes.push_back(place.node);
    return nodes;
  }

 private:
  struct Place {
    int shares = 0;
    double busy = 0, free = 0;
    const Node* node = nullptr;
    bool operator<(const Place& other) const {
      if (shares != other.shares) return shares > other.shares;
      if (busy != other.busy) return busy < other.busy;
      if (free != other.free) return free > other.free;
      return node->id < other.node->id;
    }
  };

  const size_t most_;
  // Bound: most_, kCreditorsMax.
  std::vector<Place> places_;
};

// Refers to `wanted`.
absl::flat_hash_set<absl::string_view> AvoidedBy(const v1::LoanWanted& wanted) {
  return {wanted.avoid_node_ids().begin(), wanted.avoid_node_ids().end()};
}

}  // namespace

std::vector<const Node*> LoanBroker::Rank(const Node& debtor, const v1::LoanWanted& wanted,
                                          absl::Span<const kv::BlockHash> hashes) const {
  const bool moves = !wanted.from_node_id().empty();
  // Of a loan that moves, the next creditor takes all.
  const int64_t needed = moves ? std::ssize(hashes) : std::ssize(hashes) / wanted.units();
  absl::flat_hash_set<absl::string_view> avoided = AvoidedBy(wanted);
  // A loan that is taken over stays where it is, if its creditor grants it.
  const bool taken_over = moves && wanted.prefer_node_id() == wanted.from_node_id();
  // So does one whose units were lost, at a node that holds them.
  if (moves && !taken_over && !wanted.lost()) avoided.insert(wanted.from_node_id());
  const PrefixIndex::Matches holders = index_.DeepestHolders(hashes, kCreditorsMax, 0);
  const auto held_by = [&](const Node& node) {
    for (const auto& group : holders)
      for (const PrefixIndex::Match& match : group)
        if (match.slot == node.slot) return match.blocks;
    return 0;
  };
  const bool holders_found =
      std::any_of(holders.begin(), holders.end(), [](const auto& group) { return !group.empty(); });
  // Mostly there are none, and hashing a thousand names would take as long as the rest.
  const auto is_avoided = [&](const Node& node) {
    return !avoided.empty() && avoided.contains(node.id.value());
  };
  const LoanPrice price(fleet_, debtor, std::ssize(hashes) * debtor.block_tokens);
  std::vector<Candidate> candidates;
  candidates.reserve(static_cast<size_t>(fleet_.size()));
  // What most nodes fail comes first: with a thousand of them, this loop is the ranking's cost.
  for (const Node* node : fleet_.by_slot()) {
    if (node == nullptr || node == &debtor) continue;
    const bool holds = taken_over && node->id.value() == wanted.from_node_id();
    if (!holds && LendableNow(*node) < needed) continue;
    if (!node->CanLendTo(debtor) || is_avoided(*node)) continue;
    const int32_t held = holders_found ? held_by(*node) : 0;
    // Blocks of a loan that moves come from its present creditor.
    const int64_t sent = moves ? 0 : std::ssize(hashes) - held;
    const bool preferred = node->id.value() == wanted.prefer_node_id();
    candidates.push_back({.group = (preferred ? -kPreferred : 0) - held,
                          .price_us = price.Us(*node, sent * debtor.block_tokens),
                          .node = node});
  }
  return Best(candidates);
}

std::vector<const Node*> LoanBroker::Best(absl::Span<const Candidate> candidates) {
  std::vector<const Node*> best;
  // What classes before have ended with.
  std::pair<int64_t, double> before(std::numeric_limits<int64_t>::min(), 0);
  while (best.size() < kCreditorsMax) {
    const Candidate* first = nullptr;
    for (const Candidate& c : candidates) {
      if (first != nullptr && c.place() >= first->place()) continue;
      if (c.place() > before) first = &c;
    }
    if (first == nullptr) break;
    const auto end = std::pair(first->group, first->price_us * kLinkClass);
    InClass in_class(kCreditorsMax - best.size());
    for (const Candidate& c : candidates)
      if (c.place() > before && c.place() <= end) in_class.Add(*c.node);
    for (const Node* node : in_class.best()) best.push_back(node);
    before = end;
  }
  return best;
}

std::vector<NodeKey> LoanBroker::Rivals(const Node& debtor, const v1::LoanWanted& wanted,
                                        absl::Time now) const {
  std::vector<NodeKey> rivals;
  if (wanted.arrived_us() == 0 || !wanted.from_node_id().empty()) return rivals;
  const auto lacks = [&](const Node& node) {
    if (!node.load.debts().empty()) return true;
    const auto unmet = unmet_.empty() ? unmet_.end() : unmet_.find(node.key);
    return unmet != unmet_.end() && now - unmet->second < kUnmetKept;
  };
  const auto avoided = AvoidedBy(wanted);
  for (const Node* node : fleet_.by_slot()) {
    if (node == nullptr || node == &debtor || !lacks(*node) || avoided.contains(node->id.value()))
      continue;
    if (node->CanLendTo(debtor) && !node->draining) rivals.push_back(node->key);
  }
  if (rivals.size() <= kRivalsMax) return rivals;
  // Others for the debtor's next question, so that each is asked in time.
  const size_t first = wanted.loan() * kRivalsMax % rivals.size();
  std::rotate(rivals.begin(), rivals.begin() + static_cast<std::ptrdiff_t>(first), rivals.end());
  rivals.resize(kRivalsMax);
  return rivals;
}

bool LoanBroker::NameHolder(const Node& debtor, absl::Span<const kv::BlockHash> hashes,
                            v1::LoanWanted& wanted) const {
  wanted.add_avoid_node_ids(wanted.from_node_id());
  const auto avoided = AvoidedBy(wanted);
  const int64_t per_unit = std::ssize(hashes) / wanted.units();
  const Node* holder = nullptr;
  // The most units; of equal ones those in memory, because others have to be read.
  std::pair<int64_t, bool> held = {0, true};
  for (const auto& group : index_.DeepestHolders(hashes, kCreditorsMax, 0)) {
    for (const PrefixIndex::Match& match : group) {
      const Node* node = fleet_.At(match.slot);
      const bool may = node != nullptr && node != &debtor && !avoided.contains(node->id.value());
      const int64_t units = match.blocks / per_unit;
      if (!may || units == 0) continue;
      const kv::BlockHash& last = hashes[static_cast<size_t>(units * per_unit - 1)];
      const bool in_memory = index_.TierOn(match.slot, last) == Tier::kDevice;
      if (std::pair(units, in_memory) <= held) continue;
      holder = node;
      held = {units, in_memory};
    }
  }
  if (holder == nullptr) return false;
  const int64_t units = held.first;
  wanted.set_units(static_cast<int32_t>(units));
  wanted.set_hashes(kv::PackHashes(hashes.first(static_cast<size_t>(units * per_unit))));
  wanted.set_from_node_id(holder->id.value());
  wanted.set_from_incarnation(holder->incarnation.value());
  return true;
}

absl::Status LoanBroker::OnLoanWanted(const Node& debtor, const v1::LoanWanted& asked,
                                      absl::Time now) {
  v1::LoanWanted wanted = asked;
  auto hashes = kv::UnpackHashes(wanted.hashes());
  if (!hashes.ok()) return hashes.status();
  const Key key(debtor.key, wanted.loan());
  if (questions_.contains(key)) return absl::OkStatus();
  if (wanted.units() < 1 || hashes->empty() || hashes->size() > kBlocksMax ||
      hashes->size() % static_cast<size_t>(wanted.units()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("loan of ", wanted.units(), " units in ", hashes->size(),
                     " blocks, expected equal units in 1 to ", kBlocksMax, " blocks"));
  }
  if (questions_.size() >= kQuestionsMax) {
    Refuse(debtor.key, wanted.loan(), absl::ResourceExhaustedError("too many loans are wanted"));
    return absl::OkStatus();
  }
  if (wanted.lost()) {
    if (!NameHolder(debtor, *hashes, wanted)) {
      Refuse(debtor.key, wanted.loan(), absl::NotFoundError("no other node holds the lost units"));
      return absl::OkStatus();
    }
    hashes = kv::UnpackHashes(wanted.hashes());
  }
  const std::vector<const Node*> ranked = Rank(debtor, wanted, *hashes);
  const std::vector<NodeKey> rivals = Rivals(debtor, wanted, now);
  Question question{.wanted = std::move(wanted),
                    .refusal = absl::ResourceExhaustedError("no node has memory to lend"),
                    .deadline = now + kTimeMax,
                    .patient_until = now + kFirstTime};
  if (!question.wanted.from_node_id().empty()) {
    const absl::Duration bytes_time = cost::LoanBytesTime(
        static_cast<int64_t>(static_cast<double>(std::ssize(*hashes) * debtor.block_tokens) *
                             debtor.kv_bytes_per_token));
    question.deadline += bytes_time;
    question.patient_until += bytes_time;
  }
  for (const Node* node : ranked) question.left.insert(question.left.begin(), node->key);
  for (const NodeKey rival : rivals) {
    if (std::find(question.left.begin(), question.left.end(), rival) == question.left.end())
      question.left.insert(question.left.begin(), rival);
  }
  question.wanted.clear_avoid_node_ids();
  AskNext(questions_.emplace(key, std::move(question)).first, now);
  return absl::OkStatus();
}

void LoanBroker::AskNext(Questions::iterator it, absl::Time now) {
  Question& question = it->second;
  const Node* debtor = fleet_.Find(it->first.first);
  const Node* creditor = nullptr;
  while (creditor == nullptr && !question.left.empty()) {
    creditor = fleet_.Find(question.left.back());
    question.left.pop_back();
  }
  if (creditor == nullptr || debtor == nullptr) {
    const bool lacks = question.wanted.arrived_us() > 0 && question.wanted.from_node_id().empty();
    if (debtor != nullptr && lacks) unmet_[debtor->key] = now;
    Refuse(it->first.first, it->first.second, question.refusal);
    questions_.erase(it);
    return;
  }
  question.asked = creditor->key;
  question.next_due = std::max(question.patient_until, now + kNextTime);
  v1::NodeCommand command;
  v1::LendBlocks& lend = *command.mutable_lend_blocks();
  lend.set_debtor_node_id(debtor->id.value());
  lend.set_debtor_incarnation(debtor->incarnation.value());
  lend.set_loan(question.wanted.loan());
  lend.set_first_unit(question.wanted.first_unit());
  lend.set_units(question.wanted.units());
  lend.set_hashes(question.wanted.hashes());
  if (creditor->id.value() != question.wanted.from_node_id()) {
    lend.set_from_node_id(question.wanted.from_node_id());
    lend.set_from_incarnation(question.wanted.from_incarnation());
  }
  lend.set_stored(question.wanted.lost() && lend.from_node_id().empty());
  lend.set_arrived_us(question.wanted.arrived_us());
  actions_.commands.emplace_back(creditor->key, std::move(command));
}

void LoanBroker::OnLoanOffered(const Node& creditor, const v1::LoanOffered& offered,
                               absl::Time now) {
  const auto it = std::find_if(questions_.begin(), questions_.end(), [&](const auto& entry) {
    if (entry.first.second != offered.loan() || entry.second.asked != creditor.key) return false;
    const Node* debtor = fleet_.Find(entry.first.first);
    return debtor != nullptr && debtor->id.value() == offered.debtor_node_id() &&
           debtor->incarnation.value() == offered.debtor_incarnation();
  });
  if (it == questions_.end()) return;
  const absl::Status status = rpc::FromWire(offered.status());
  if (!status.ok()) {
    it->second.refusal = absl::Status(
        status.code(), absl::StrCat("node ", creditor.id.value(), ": ", status.message()));
    return AskNext(it, now);
  }
  v1::NodeCommand command;
  v1::LoanAnswer& answer = *command.mutable_loan_answer();
  answer.set_loan(offered.loan());
  answer.set_creditor_node_id(creditor.id.value());
  answer.set_creditor_incarnation(creditor.incarnation.value());
  answer.set_creditor_host(creditor.host);
  answer.set_creditor_address(creditor.transfer_address);
  answer.set_lending_address(creditor.lending_address);
  answer.set_units(offered.units());
  answer.set_held_blocks(offered.held_blocks());
  answer.set_lease_id(offered.lease_id());
  answer.set_epoch(offered.epoch());
  actions_.commands.emplace_back(it->first.first, std::move(command));
  questions_.erase(it);
}

void LoanBroker::Refuse(NodeKey debtor, uint64_t loan, const absl::Status& why) {
  if (fleet_.Find(debtor) == nullptr) return;
  v1::NodeCommand command;
  v1::LoanAnswer& answer = *command.mutable_loan_answer();
  answer.set_loan(loan);
  *answer.mutable_status() = rpc::ToWire(why);
  actions_.commands.emplace_back(debtor, std::move(command));
}

void LoanBroker::OnNodeLost(NodeKey key, absl::Time now) {
  unmet_.erase(key);
  for (auto it = questions_.begin(); it != questions_.end();) {
    const auto question = it++;
    if (question->first.first == key) {
      questions_.erase(question);
    } else if (question->second.asked == key) {
      AskNext(question, now);
    }
  }
}

void LoanBroker::OnTick(absl::Time now) {
  for (auto it = questions_.begin(); it != questions_.end();) {
    const auto question = it++;
    if (question->second.deadline <= now) {
      Refuse(question->first.first, question->first.second,
             absl::DeadlineExceededError("no creditor answered in time"));
      questions_.erase(question);
    } else if (question->second.next_due <= now && !question->second.left.empty()) {
      question->second.refusal = absl::DeadlineExceededError("no creditor answered in time");
      AskNext(question, now);
    }
  }
}

}  // namespace tandem::router
