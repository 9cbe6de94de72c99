#include "router/placement/cost_placement.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace tandem::router {
namespace {

// The model's error, as a share of the predicted time: what the node says, within these bounds. A
// node that says nothing, or that its model is worthless, does not make all choices equal.
constexpr double kErrorMin = 0.01, kErrorMax = 0.1;
// What timers and messages leave open in any case.
constexpr double kErrorUs = 200;

double ToleranceUs(const CostPlacement::Choice& choice) {
  const Node& node = *(choice.prefill != nullptr ? choice.prefill : choice.decode)->node;
  const double error = node.profile().median_relative_error;
  const double share = error >= kErrorMin ? std::min(error, kErrorMax) : kErrorMin;
  return kErrorUs + share * choice.times.first_token_us;
}

// The index of the cheapest choice, or -1.
int Cheapest(absl::Span<const CostPlacement::Choice> choices) {
  int best = -1;
  for (size_t i = 0; i < choices.size(); ++i)
    if (best < 0 || choices[i].times.cost_us < choices[static_cast<size_t>(best)].times.cost_us)
      best = static_cast<int>(i);
  return best;
}

}  // namespace

// The choices of one placement, compared.
class CostPlacement::Comparison {
 public:
  Comparison(const PredictedTimes& predicted, absl::Span<const Candidate> decodes,
             absl::Span<const Candidate> prefills, const Limits& limits)
      : predicted_(predicted), decodes_(decodes), prefills_(prefills), limits_(limits) {
    prompts_.reserve(prefills.size());
    for (const Candidate& prefill : prefills) prompts_.push_back(predicted.WithFetch(prefill));
    choices_.reserve(decodes.size() * (prefills.size() + 1));
    for (const Candidate& decode : decodes) Compare(decode);
    DropNeedless();
  }

  std::optional<Choice> Pick(Random& random, Weighed& weighed) const {
    weighed.first_token_us_least = least_us_;
    weighed.first_token_us_fastest = fastest_us_;
    const int best = Cheapest(choices_);
    if (best < 0) return std::nullopt;
    const Choice& cheapest = choices_[static_cast<size_t>(best)];
    weighed.tolerance_us = ToleranceUs(cheapest);
    const double most = cheapest.times.cost_us + weighed.tolerance_us;
    uint64_t equal = 0;
    for (const Choice& choice : choices_) equal += choice.times.cost_us <= most ? 1 : 0;
    uint64_t skipped = equal == 1 ? 0 : random.Below(equal);
    for (const Choice& choice : choices_)
      if (choice.times.cost_us <= most && skipped-- == 0) return choice;
    return cheapest;
  }

  void Explain(const Choice& chosen, Weighed& weighed) const {
    for (const Candidate& decode : decodes_)
      AddBest(weighed.decodes, [&](const Choice& choice) {
        return choice.decode == &decode && (&decode != chosen.decode || IsChosen(choice, chosen));
      });
    for (const Candidate& prefill : prefills_)
      AddBest(weighed.prefills, [&](const Choice& choice) {
        return choice.prefill == &prefill && choice.decode == chosen.decode;
      });
  }

 private:
  static bool IsChosen(const Choice& choice, const Choice& chosen) {
    return choice.decode == chosen.decode && choice.prefill == chosen.prefill;
  }
  template <typename Matches>
  void AddBest(std::vector<Choice>& list, Matches matches) const {
    std::vector<Choice> found;
    std::copy_if(choices_.begin(), choices_.end(), std::back_inserter(found), matches);
    if (const int best = Cheapest(found); best >= 0)
      list.push_back(found[static_cast<size_t>(best)]);
  }

  void Compare(const Candidate& decode) {
    // With prefill nodes, what a decode node fetches is no reason to compute there: KV would cross
    // the wire, and answers would stand still, for a prompt that another node is there for.
    const PromptTimes own =
        prefills_.empty() ? predicted_.WithFetch(decode) : predicted_.FromOwnBlocks(decode);
    const DecodeTimes decoding = predicted_.Decoding(decode);
    if (!limits_.pairs_only) Add({&decode, nullptr, own, predicted_.Alone(decode, own, decoding)});
    for (size_t i = 0; i < prefills_.size(); ++i) {
      if (Fleet::InBackoff(*prefills_[i].node, *decode.node, predicted_.now())) continue;
      Add({&decode, &prefills_[i], prompts_[i],
           predicted_.Pair(prefills_[i], prompts_[i], decode, decoding)});
    }
  }
  // That every pair is too late is no reason to interrupt what a decode node generates: it computes
  // a prompt only where that costs less than any pair, in time or not.
  void DropNeedless() {
    std::erase_if(choices_, [this](const Choice& choice) {
      return choice.prefill == nullptr && choice.times.cost_us > least_pair_cost_us_;
    });
  }
  void Add(const Choice& choice) {
    const double us = choice.times.first_token_us;
    if (choice.prefill != nullptr)
      least_pair_cost_us_ = std::min(least_pair_cost_us_, choice.times.cost_us);
    least_us_ = std::min(least_us_, us);
    PromptTimes alone = choice.prompt;
    alone.wait_us = 0;
    fastest_us_ = std::min(fastest_us_, alone.first_token_us());
    if (absl::Microseconds(us) <= limits_.first_token) choices_.push_back(choice);
  }

  const PredictedTimes& predicted_;
  const absl::Span<const Candidate> decodes_, prefills_;
  const Limits limits_;
  // Bound: 16 prefill nodes.
  std::vector<PromptTimes> prompts_;  // of prefills_
  // Bound: 16 decode nodes, each alone and with 16 prefill nodes.
  std::vector<Choice> choices_;
  double least_us_ = std::numeric_limits<double>::infinity(), fastest_us_ = least_us_;
  double least_pair_cost_us_ = std::numeric_limits<double>::infinity();
};

std::optional<CostPlacement::Choice> CostPlacement::Choose(const PredictedTimes& predicted,
                                                           absl::Span<const Candidate> decodes,
                                                           absl::Span<const Candidate> prefills,
                                                           const Limits& limits, Weighed& weighed) {
  const Comparison comparison(predicted, decodes, prefills, limits);
  const std::optional<Choice> chosen = comparison.Pick(random_, weighed);
  if (chosen.has_value() && limits.explains) comparison.Explain(*chosen, weighed);
  return chosen;
}

void CostPlacement::Describe(const Choice& choice, v1::PlacementCandidate& candidate) {
  const auto add = [&](const char* name, double us) {
    v1::PlacementScore& figure = *candidate.add_scores();
    figure.set_name(name);
    figure.set_score(us / 1e3);
  };
  add("wait", choice.prompt.wait_us);
  add("read", choice.prompt.read_us);
  add("read host", choice.prompt.read_host_us);
  add("fetch", choice.prompt.fetch_us);
  add("compute", choice.prompt.compute_us);
  add("late", choice.prompt.late_us);
  add("first token", choice.times.first_token_us);
  add("transfer", choice.times.transfer_us);
  add("step", choice.times.step_us);
  add("harm", choice.times.harm_us);
  candidate.set_score(choice.times.cost_us / 1e3);
  candidate.set_pair_score(choice.times.cost_us / 1e3);
}

}  // namespace tandem::router
