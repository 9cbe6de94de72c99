#include "router/core/loan_planner.h"

#include <algorithm>
#include <utility>

#include "common/telemetry/log.h"
#include "router/core/lendable_blocks.h"

namespace tandem::router {
namespace {

// Of what a node computes now. A lent token is attended to by its sequence, and not here.
double StepUs(const Node& node, int64_t more_sequences, int64_t more_tokens) {
  const int64_t lent_out = node.load.blocks_lent() * node.block_tokens;
  const int64_t attended = std::max<int64_t>(0, node.tokens_held() - lent_out + more_tokens);
  return node.GenerateUs(node.sequences() + more_sequences, attended);
}

double Rate(int64_t sequences, double step_us) {
  return step_us > 0 ? static_cast<double>(sequences) / step_us : 0;
}

int64_t UnitBlocks(const Node& node) {
  return std::max<int64_t>(1, node.lending_unit_tokens / std::max(1, node.block_tokens));
}

int64_t BlocksToMove(const Node& node, bool debtor) {
  return debtor ? node.blocks_lendable : SpareToLend(node);
}

}  // namespace

bool LoanPlanner::MayBe(const Node& node, bool debtor, absl::Time now) const {
  if (node.draining || node.lending_address.empty() || BlocksToMove(node, debtor) == 0)
    return false;
  if (const auto last = roles_.find(node.key); last != roles_.end()) {
    const absl::Duration kept = last->second.debtor != debtor ? kRoleKept
                                : debtor                      ? kSettle
                                                              : absl::ZeroDuration();
    if (now - last->second.since < kept) return false;
  }
  // A creditor keeps its own memory, and one whose sequences will outgrow it needs that memory.
  if (!debtor) return node.legs_beyond_pool == 0;
  return node.role == v1::NODE_ROLE_DECODE && node.load.blocks_lent() == 0 &&
         node.has_sequence_slot() && node.sequences() > 0;
}

std::vector<const Node*> LoanPlanner::Candidates(bool debtor, absl::Time now) const {
  std::vector<std::pair<int64_t, const Node*>> found;
  for (const Node* node : fleet_.by_slot())
    if (node != nullptr && MayBe(*node, debtor, now))
      found.emplace_back(-BlocksToMove(*node, debtor), node);
  const size_t kept = std::min(found.size(), kNodesMax);
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(kept), found.end(),
                    [](const auto& a, const auto& b) {
                      return a.first != b.first ? a.first < b.first : a.second->id < b.second->id;
                    });
  std::vector<const Node*> best;
  for (size_t i = 0; i < kept; ++i) best.push_back(found[i].second);
  return best;
}

LoanPlanner::Plan LoanPlanner::BestOf(const Node& debtor, const Node& creditor,
                                      absl::Span<const int64_t> waiting) const {
  const int64_t unit = UnitBlocks(debtor);
  const int64_t most = std::min(debtor.blocks_lendable, SpareToLend(creditor)) / unit * unit;
  const double debtor_before = Rate(debtor.sequences(), StepUs(debtor, 0, 0));
  const double creditor_before = Rate(creditor.sequences(), StepUs(creditor, 0, 0));
  const double before = debtor_before + creditor_before;
  // What is known of the steps of a node with debts includes it.
  const double slowdown = debtor.load.debts().empty() ? kSlowdown : 1;
  Plan best{.debtor = &debtor, .creditor = &creditor};
  int64_t blocks_needed = 0, tokens = 0, taken = 0;
  for (const int64_t more : waiting.subspan(0, kWaitingMax)) {
    if (debtor.max_sequences > 0 && debtor.sequences() + taken >= debtor.max_sequences) break;
    // With a block for its first tokens, so that it is not preempted at once.
    blocks_needed += debtor.blocks_for(more) + 1;
    tokens += more;
    ++taken;
    const int64_t lacking = blocks_needed - std::max<int64_t>(0, debtor.blocks_available());
    if (lacking <= 0) continue;  // there is room: placement has not come to it yet
    const int64_t blocks = (lacking + unit - 1) / unit * unit;
    if (blocks > most) break;
    const int64_t lent = blocks * debtor.block_tokens;
    const double answer_us = creditor.profile().generated_attended_us * static_cast<double>(lent);
    const double step_us = slowdown * std::max(StepUs(debtor, taken, tokens - lent), answer_us);
    const double share = step_us > 0 ? std::min(answer_us / step_us, kComputeShare) : 0;
    const double after = Rate(debtor.sequences() + taken, step_us) + creditor_before * (1 - share);
    const double gain = before > 0 ? after / before - 1 : 0;
    if (gain <= best.gain) continue;
    best.gain = gain;
    best.blocks = blocks;
    best.sequences = taken;
  }
  return best;
}

std::optional<LoanPlanner::Plan> LoanPlanner::Best(absl::Span<const int64_t> waiting,
                                                   absl::Time now) const {
  if (waiting.empty()) return std::nullopt;
  const std::vector<const Node*> creditors = Candidates(/*debtor=*/false, now);
  if (creditors.empty()) return std::nullopt;
  Plan best{.gain = kGainMin};
  for (const Node* debtor : Candidates(/*debtor=*/true, now)) {
    for (const Node* creditor : creditors) {
      if (creditor == debtor || !creditor->CanLendTo(*debtor)) continue;
      if (const Plan plan = BestOf(*debtor, *creditor, waiting); plan.gain > best.gain) best = plan;
    }
  }
  return best.debtor == nullptr ? std::nullopt : std::optional(best);
}

void LoanPlanner::OnTick(absl::Span<const int64_t> waiting, absl::Time now) {
  if (!due(now)) return;
  next_ = now + kInterval;
  const std::optional<Plan> plan = Best(waiting, now);
  if (!plan.has_value()) return;
  ++plans_;
  roles_[plan->debtor->key] = {.debtor = true, .since = now};
  roles_[plan->creditor->key] = {.debtor = false, .since = now};
  Log(LogLevel::kInfo, "a node shall borrow, so that waiting requests fit in",
      {{"debtor", plan->debtor->id.value()},
       {"creditor", plan->creditor->id.value()},
       {"blocks", plan->blocks},
       {"sequences", plan->sequences},
       {"gain_percent", static_cast<int64_t>(plan->gain * 100)}});
  v1::NodeCommand command;
  v1::BorrowBlocks& borrow = *command.mutable_borrow_blocks();
  borrow.set_blocks(plan->blocks);
  borrow.set_creditor_node_id(plan->creditor->id.value());
  actions_.commands.emplace_back(plan->debtor->key, std::move(command));
}

}  // namespace tandem::router
