#include "cli/report/placement_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace tandem::cli {
namespace {

using Candidates = google::protobuf::RepeatedPtrField<v1::PlacementCandidate>;

// The policy `cost` gives milliseconds, of which less is better, and no weights.
bool InMilliseconds(const v1::PlacementDecision& decision) { return decision.policy() == "cost"; }

std::string PairScore(const v1::PlacementCandidate& candidate) {
  return candidate.pair_score() < 0 ? "backoff" : absl::StrFormat("%.3f", candidate.pair_score());
}

// Wide enough for the title and each node's name.
int NameColumn(const char* title, const Candidates& candidates) {
  size_t width = std::string(title).size();
  for (const v1::PlacementCandidate& candidate : candidates)
    width = std::max(width, absl::CHexEscape(candidate.node_id()).size());
  return static_cast<int>(width);
}

template <typename IsBetter>
std::vector<const v1::PlacementCandidate*> Sorted(const Candidates& candidates,
                                                  IsBetter is_better) {
  std::vector<const v1::PlacementCandidate*> best_first;
  for (const v1::PlacementCandidate& candidate : candidates) best_first.push_back(&candidate);
  std::stable_sort(best_first.begin(), best_first.end(), is_better);
  return best_first;
}

void AppendName(const v1::PlacementCandidate& candidate, int name_column, std::string& text) {
  absl::StrAppendFormat(&text, "  %s %-*s %8d", candidate.chosen() ? ">" : " ", name_column,
                        absl::CHexEscape(candidate.node_id()), candidate.cached_tokens());
}

// The predicted times of one leg's nodes, in milliseconds, with the other leg's best node.
std::string TimesTable(const char* title, const Candidates& candidates) {
  if (candidates.empty()) return "";
  const int name_column = NameColumn(title, candidates);
  std::string text = absl::StrFormat("    %-*s %8s", name_column, title, "CACHED");
  for (const v1::PlacementScore& time : candidates[0].scores())
    absl::StrAppendFormat(&text, " %*s", std::max<int>(8, static_cast<int>(time.name().size())),
                          absl::AsciiStrToUpper(time.name()));
  absl::StrAppend(&text, candidates[0].scores().empty() ? "\n" : "     COST\n");
  const auto is_better = [](const auto* a, const auto* b) { return a->score() < b->score(); };
  for (const v1::PlacementCandidate* candidate : Sorted(candidates, is_better)) {
    AppendName(*candidate, name_column, text);
    for (const v1::PlacementScore& time : candidate->scores())
      absl::StrAppendFormat(&text, " %*.1f", std::max<int>(8, static_cast<int>(time.name().size())),
                            time.score());
    if (!candidate->scores().empty()) absl::StrAppendFormat(&text, " %8.1f", candidate->score());
    absl::StrAppend(&text, "\n");
  }
  return text;
}

// The columns of one leg's nodes; only the chosen one's name where nothing was weighed.
std::string Table(const char* title, const Candidates& candidates) {
  if (candidates.empty()) return "";
  const int name_column = NameColumn(title, candidates);
  const bool weighed = !candidates[0].scores().empty();
  std::string text = absl::StrFormat("    %-*s %8s", name_column, title, "CACHED");
  for (const v1::PlacementScore& score : candidates[0].scores()) {
    absl::StrAppendFormat(
        &text, " %12s",
        absl::StrFormat("%s*%g", absl::AsciiStrToUpper(score.name()), score.weight()));
  }
  absl::StrAppend(&text, weighed ? "    SCORE     PAIR\n" : "\n");
  const auto is_better = [](const auto* a, const auto* b) {
    return a->pair_score() > b->pair_score();
  };
  for (const v1::PlacementCandidate* candidate : Sorted(candidates, is_better)) {
    AppendName(*candidate, name_column, text);
    for (const v1::PlacementScore& score : candidate->scores()) {
      absl::StrAppendFormat(&text, " %12.3f", score.score());
    }
    if (weighed)
      absl::StrAppendFormat(&text, " %8.3f %8s", candidate->score(), PairScore(*candidate));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

const v1::PlacementCandidate* Chosen(const Candidates& candidates) {
  for (const v1::PlacementCandidate& candidate : candidates) {
    if (candidate.chosen()) return &candidate;
  }
  return nullptr;
}

// What the predictions say of the choice: the first token, and the next best choice.
std::string Predicted(const v1::PlacementDecision& decision, const v1::PlacementCandidate& chosen) {
  std::string text;
  for (const v1::PlacementScore& time : chosen.scores())
    if (time.name() == "first token")
      absl::StrAppendFormat(&text, "  First token predicted after %.1f ms", time.score());
  if (text.empty()) return text;
  const v1::PlacementCandidate* next = nullptr;
  for (const Candidates* list : {&decision.decode_nodes(), &decision.prefill_nodes()})
    for (const v1::PlacementCandidate& other : *list)
      if (!other.chosen() && (next == nullptr || other.score() < next->score())) next = &other;
  if (next != nullptr)
    absl::StrAppendFormat(&text, "; the next best choice, %s, costs %.1f ms more",
                          absl::CHexEscape(next->node_id()), next->score() - chosen.score());
  return absl::StrCat(text, ".\n");
}

bool Fetches(const v1::PlacementCandidate& node) {
  for (const v1::PlacementScore& time : node.scores())
    if (time.name() == "fetch" && time.score() > 0) return true;
  return false;
}

// What the chosen nodes would read from their storage.
std::string Stored(const Candidates& candidates) {
  const v1::PlacementCandidate* chosen = Chosen(candidates);
  if (chosen == nullptr || chosen->host_memory_tokens() + chosen->disk_tokens() <= 0) return "";
  return absl::StrCat("  Of ", absl::CHexEscape(chosen->node_id()), "'s cached tokens ",
                      chosen->host_memory_tokens(), " are in host memory and ",
                      chosen->disk_tokens(), " on disk.\n");
}

// Which node computes the prompt, and why.
std::string Conclusion(const v1::PlacementDecision& decision) {
  const v1::PlacementCandidate* decode = Chosen(decision.decode_nodes());
  const v1::PlacementCandidate* prefill = Chosen(decision.prefill_nodes());
  if (decode == nullptr) return "";
  const int64_t lacks = decision.prompt_tokens() - decode->cached_tokens();
  const std::string node = absl::CHexEscape(decode->node_id());
  std::string text = absl::StrCat("  ", node, " decodes");
  if (decision.beside()) {
    return absl::StrCat(text, ", beside the request's other sequences: it holds their prompt.\n");
  }
  absl::StrAppend(&text, " and lacks ", lacks, " of the prompt's ", decision.prompt_tokens(),
                  " tokens; ");
  if (prefill == nullptr) {
    const bool weighed = InMilliseconds(decision) && !decision.prefill_nodes().empty();
    return absl::StrCat(text,
                        Fetches(*decode)
                            ? "it fetches what another node holds, and computes the rest"
                            : "it computes them itself",
                        weighed ? ": that costs least.\n" : ": no prefill node may take them.\n",
                        InMilliseconds(decision) ? Predicted(decision, *decode) : "");
  }
  if (lacks <= decision.local_prefill_tokens_max()) {
    return absl::StrCat(text, "it computes them itself: they are at most ",
                        decision.local_prefill_tokens_max(), " (--local-prefill-tokens).\n");
  }
  const std::string computes = absl::CHexEscape(prefill->node_id());
  if (!InMilliseconds(decision))
    return absl::StrCat(text, computes, " computes what neither holds.\n");
  return absl::StrCat(text, computes,
                      Fetches(*prefill)
                          ? " fetches what another node holds, and computes the rest.\n"
                          : " computes what it lacks.\n",
                      Predicted(decision, *prefill));
}

// How each sequence's first token compares with what its last placement predicted.
std::string FirstTokens(const v1::RequestTrace& trace) {
  std::string text;
  for (const v1::Finished& finished : trace.sequences()) {
    const v1::Timing& timing = finished.timing();
    if (timing.first_token_predicted_ms() <= 0) continue;
    absl::StrAppendFormat(
        &text, "sequence %d: first token %.1f ms after its placement; predicted were %.1f\n",
        finished.sequence_index(), timing.first_token_ms() - timing.queue_ms(),
        timing.first_token_predicted_ms());
  }
  return text;
}

}  // namespace

std::string FormatGoals(const v1::RequestTrace& trace) {
  if (!trace.has_goals()) return "";
  const v1::ServiceGoals& goals = trace.goals();
  std::vector<std::string> parts;
  const auto add = [&](const char* what, double ms) {
    if (ms > 0)
      parts.push_back(absl::StrCat(what, " within ", absl::FormatDuration(absl::Milliseconds(ms))));
  };
  add("first token", goals.first_token_ms());
  add("gaps", goals.gap_ms());
  return absl::StrCat("service tier ", absl::CHexEscape(goals.service_tier()), ": ",
                      parts.empty() ? "no goals" : absl::StrJoin(parts, ", "), "\n");
}

std::string FormatPlacements(const v1::RequestTrace& trace) {
  std::string text =
      absl::StrCat("request ", absl::CHexEscape(trace.request_id()), "\n", FormatGoals(trace));
  for (const v1::PlacementDecision& decision : trace.placements()) {
    absl::StrAppendFormat(&text, "sequence %d, placed at %.2f ms by %s\n",
                          decision.sequence_index(), decision.at_ms(), decision.policy());
    const auto table = InMilliseconds(decision) ? TimesTable : Table;
    if (InMilliseconds(decision))
      absl::StrAppend(
          &text,
          "  predicted milliseconds; the least cost is chosen, by lot where the model's "
          "error allows no order\n");
    absl::StrAppend(&text, table("DECODE NODE", decision.decode_nodes()),
                    table("PREFILL NODE", decision.prefill_nodes()), Conclusion(decision),
                    Stored(decision.decode_nodes()), Stored(decision.prefill_nodes()));
  }
  if (trace.placements_dropped() > 0) {
    absl::StrAppend(&text, "and ", trace.placements_dropped(), " placements more\n");
  }
  absl::StrAppend(&text, FirstTokens(trace));
  if (!trace.error().empty()) absl::StrAppend(&text, "failed: ", trace.error(), "\n");
  if (trace.placements().empty())
    absl::StrAppend(&text, "no sequence of it was placed and ended\n");
  return text;
}

}  // namespace tandem::cli
