#include "cli/bench/evaluation.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/bench/document_scorer.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/cpu_choices.h"

namespace tandem::engine {
namespace {

// Tokens of a window that a continuation begins with.
constexpr size_t kPromptTokens = 32;

size_t Argmax(absl::Span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// log Σ e^x, in double.
double LogSum(absl::Span<const float> logits) {
  const double most = logits[Argmax(logits)];
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - most);
  return most + std::log(sum);
}

// One position's contribution to a candidate's sums.
struct PositionScore {
  double negative_logprob = 0, kl = 0;
  bool same_top = false;
};

PositionScore Score(absl::Span<const float> base, absl::Span<const float> candidate, TokenId next) {
  const double base_sum = LogSum(base), sum = LogSum(candidate);
  PositionScore score;
  score.negative_logprob = sum - candidate[static_cast<size_t>(next)];
  for (size_t i = 0; i < base.size(); ++i) {
    const double logprob = base[i] - base_sum;
    score.kl += std::exp(logprob) * (logprob - (candidate[i] - sum));
  }
  score.same_top = Argmax(base) == Argmax(candidate);
  return score;
}

class Evaluation {
 public:
  Evaluation(const model::Checkpoint& checkpoint, const EvaluationOptions& options)
      : checkpoint_(checkpoint), options_(options) {}

  // The first one added is the baseline.
  absl::Status Add(const std::string& weights, const std::string& kv_type) {
    CpuEngineOptions options = options_.engine;
    options.weights = weights;
    options.kv_type = kv_type;
    if (scorers_.empty()) options.isa = "auto";
    ASSIGN_OR_RETURN(const CpuChoices choices, ChooseForCpu(checkpoint_.config(), options));
    ASSIGN_OR_RETURN(auto scorer,
                     DocumentScorer::Create(checkpoint_, {.backend = *choices.backend,
                                                          .weights = choices.weights,
                                                          .kv_type = choices.kv.type,
                                                          .threads = options.threads}));
    EvaluationResult& result = results_.emplace_back();
    result.weights = weights;
    result.kv_type = kv_type;
    result.weight_bytes = scorer->weights().bytes();
    scorers_.push_back(std::move(scorer));
    return absl::OkStatus();
  }

  // Scores a window: each token but the first, given those before it.
  void ScoreWindow(absl::Span<const TokenId> window) {
    const int64_t size = static_cast<int64_t>(window.size()) - 1;
    for (int64_t begin = 0; begin < size; begin += DocumentScorer::kChunkRows) {
      const int64_t rows = std::min(DocumentScorer::kChunkRows, size - begin);
      for (const auto& scorer : scorers_) scorer->Score(window, begin, rows);
      for (size_t s = 0; s < scorers_.size(); ++s) {
        std::vector<PositionScore> scores(static_cast<size_t>(rows));
        scorers_[s]->parallel()(rows, [&](int64_t i, int) {
          scores[static_cast<size_t>(i)] = Score(scorers_[0]->Row(i), scorers_[s]->Row(i),
                                                 window[static_cast<size_t>(begin + i + 1)]);
        });
        for (const PositionScore& score : scores) {
          results_[s].perplexity += score.negative_logprob;
          results_[s].kl_mean += score.kl;
          results_[s].top_share += score.same_top ? 1 : 0;
        }
      }
      positions_ += rows;
    }
  }

  void CompareContinuations(absl::Span<const TokenId> prompt) {
    std::vector<TokenId> expected;
    for (size_t s = 0; s < scorers_.size(); ++s) {
      const std::vector<TokenId> tokens = Continue(scorers_[s].get(), prompt);
      if (s == 0) expected = tokens;
      const auto parted = std::mismatch(tokens.begin(), tokens.end(), expected.begin());
      const int64_t equal = parted.first - tokens.begin();
      results_[s].greedy_share += static_cast<double>(equal);
      results_[s].greedy_equal += equal == options_.greedy_tokens ? 1 : 0;
    }
    ++prompts_;
  }

  EvaluationReport Finish() {
    const double positions = static_cast<double>(positions_);
    const int64_t greedy_tokens = std::max<int64_t>(1, prompts_ * options_.greedy_tokens);
    for (EvaluationResult& result : results_) {
      result.perplexity = std::exp(result.perplexity / positions);
      result.kl_mean /= positions;
      result.top_share /= positions;
      result.greedy_share /= static_cast<double>(greedy_tokens);
    }
    EvaluationReport report;
    report.positions = positions_;
    report.greedy_prompts = prompts_;
    report.baseline = std::move(results_[0]);
    report.results.assign(std::make_move_iterator(results_.begin() + 1),
                          std::make_move_iterator(results_.end()));
    return report;
  }

 private:
  std::vector<TokenId> Continue(DocumentScorer* scorer, absl::Span<const TokenId> prompt) const {
    std::vector<TokenId> tokens(prompt.begin(), prompt.end());
    int64_t computed = 0;
    for (int64_t i = 0; i < options_.greedy_tokens; ++i) {
      const int64_t rows = static_cast<int64_t>(tokens.size()) - computed;
      scorer->Score(tokens, computed, rows);
      computed += rows;
      tokens.push_back(static_cast<TokenId>(Argmax(scorer->Row(rows - 1))));
    }
    return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end()};
  }

  const model::Checkpoint& checkpoint_;
  const EvaluationOptions& options_;
  std::vector<std::unique_ptr<DocumentScorer>> scorers_;
  std::vector<EvaluationResult> results_;
  int64_t positions_ = 0, prompts_ = 0;
};

absl::Status CheckOptions(const model::Checkpoint& checkpoint, absl::Span<const TokenId> tokens,
                          absl::Span<const TokenId> prefix, const EvaluationOptions& options) {
  const int64_t window_max =
      std::min<int64_t>(DocumentScorer::kTokensMax, checkpoint.config().context_tokens);
  const int64_t longest =
      std::max<int64_t>(options.window_tokens, static_cast<int64_t>(kPromptTokens + prefix.size()) +
                                                   options.greedy_tokens);
  if (options.window_tokens < 2 || options.greedy_tokens < 0 || longest > window_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("windows of ", options.window_tokens, " tokens and continuations of ",
                     options.greedy_tokens,
                     ", expected 2 or more and, with their prompts, at most ", window_max));
  }
  if (tokens.size() < 2 || prefix.size() + 2 > static_cast<size_t>(options.window_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", tokens.size(), " tokens, expected 2 or more"));
  }
  for (const TokenId token : tokens) {
    if (token >= 0 && token < checkpoint.config().vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat("token ", token, " is outside the vocabulary"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EvaluationReport> Evaluate(const model::Checkpoint& checkpoint,
                                          absl::Span<const TokenId> tokens,
                                          absl::Span<const TokenId> prefix,
                                          const EvaluationOptions& options) {
  RETURN_IF_ERROR(CheckOptions(checkpoint, tokens, prefix, options));
  Evaluation evaluation(checkpoint, options);
  RETURN_IF_ERROR(evaluation.Add("f32", "f32"));
  for (const std::string& weights : options.weights) {
    for (const std::string& kv_type : options.kv_types) {
      RETURN_IF_ERROR(evaluation.Add(weights, kv_type));
    }
  }
  const size_t step = static_cast<size_t>(options.window_tokens) - prefix.size();
  int64_t left = options.positions, prompts_left = options.greedy_prompts;
  for (size_t begin = 0; begin + 1 < tokens.size() && left > 0; begin += step) {
    std::vector<TokenId> window(prefix.begin(), prefix.end());
    const size_t size = std::min({step, tokens.size() - begin, static_cast<size_t>(left) + 1});
    window.insert(window.end(), tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                  tokens.begin() + static_cast<std::ptrdiff_t>(begin + size));
    if (window.size() < 2) break;
    evaluation.ScoreWindow(window);
    left -= static_cast<int64_t>(window.size()) - 1;
    if (prompts_left-- > 0) {
      window.resize(std::min(window.size(), kPromptTokens + prefix.size()));
      evaluation.CompareContinuations(window);
    }
  }
  return evaluation.Finish();
}

}  // namespace tandem::engine
