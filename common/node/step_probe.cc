#include "common/node/step_probe.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "common/base/status_macros.h"

namespace tandem::node {
namespace {

constexpr int64_t kSequences = 4, kPromptTokens = 8;
// Other processes disturb some rounds; the least time of each step counts. A model whose rounds
// take longer than the budget is disturbed less, in proportion.
constexpr int kRoundsMax = 8;
constexpr absl::Duration kRoundsBudget = absl::Milliseconds(300);

// A step of the probe and the least time that it took.
struct Probed {
  bool generate = false;
  int64_t sequences = 0;
  cost::StepShape shape;
  double us = std::numeric_limits<double>::infinity();
};

// Sequences of one prompt each and one generated token, in blocks of their own.
class Probe {
 public:
  Probe(engine::Engine& engine, int64_t max_batch_tokens, const Clock& clock)
      : engine_(engine), clock_(clock) {
    const engine::EngineSpec& spec = engine.spec();
    prompt_tokens_ = std::min({kPromptTokens, int64_t{spec.context_tokens} - 1, max_batch_tokens});
    if (prompt_tokens_ < 1) return;
    const int64_t blocks = spec.layout.BlocksFor(prompt_tokens_ + 1);
    kv::SlotTable* slots = engine.arena().slots().get();
    const int64_t room = slots == nullptr ? engine.arena().num_blocks() : slots->num_slots();
    const int64_t sequences =
        std::min({kSequences, max_batch_tokens / prompt_tokens_, room / blocks});
    tokens_.assign(prompt_tokens_ + 1, TokenId{0});
    for (int64_t i = 0; i < sequences; ++i) {
      std::vector<BlockId>& table = tables_.emplace_back();
      for (int64_t j = 0; j < blocks; ++j) table.emplace_back(static_cast<int32_t>(i * blocks + j));
      for (const BlockId block : table)
        if (slots != nullptr) slots->Set(block, block.value());
    }
  }
  ~Probe() {
    const auto& slots = engine_.arena().slots();
    if (slots == nullptr) return;
    for (const std::vector<BlockId>& table : tables_)
      for (const BlockId block : table) slots->Set(block, kv::SlotTable::kNone);
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  int64_t sequences() const { return static_cast<int64_t>(tables_.size()); }

  // Computes the prompts of the first sequences, or their generated rows.
  absl::Status Run(Probed& step) {
    std::vector<engine::SequenceSlice> slices;
    step.shape = {};
    const auto all = absl::MakeConstSpan(tokens_);
    for (int64_t i = 0; i < step.sequences; ++i) {
      const int64_t first = step.generate ? prompt_tokens_ : 0;
      const int64_t rows = step.generate ? 1 : prompt_tokens_;
      slices.push_back({.tokens = all.subspan(0, first + rows),
                        .num_computed = first,
                        .num_new = rows,
                        .blocks = tables_[i],
                        .sample = step.generate,
                        .prompt_tokens = prompt_tokens_,
                        .sampling = &sampling_});
      step.shape.Add(first, rows, step.generate);
    }
    const absl::Time start = clock_.Now();
    RETURN_IF_ERROR(engine_.Step(slices, [](int) {}).status());
    step.us = std::min(step.us, absl::ToDoubleMicroseconds(clock_.Now() - start));
    return absl::OkStatus();
  }

 private:
  engine::Engine& engine_;
  const Clock& clock_;
  const request::SamplingParams sampling_;
  int64_t prompt_tokens_ = 0;
  // Bound: kPromptTokens and one.
  std::vector<TokenId> tokens_;  // prompt and generated token of every sequence
  // Bound: kSequences.
  std::vector<std::vector<BlockId>> tables_;
};

int64_t RowsOf(const cost::StepShape& shape) { return shape.prompt_rows + shape.generated_rows; }

// Lowers times that cannot be, because all rounds were disturbed. Of one kind, fewer rows take no
// longer than more; and rows in one step take no longer than if each were a step of its own, as a
// single generated row is.
void Reconcile(std::array<Probed, 4>& steps) {
  auto& [prompt, prompts, generated, all_generated] = steps;
  generated.us = std::min(generated.us, all_generated.us);
  for (Probed* step : {&prompts, &all_generated, &prompt})
    step->us = std::min(step->us, generated.us * static_cast<double>(RowsOf(step->shape)));
  prompt.us = std::min(prompt.us, prompts.us);
}

}  // namespace

absl::StatusOr<cost::StepCost> ProbeStepCost(engine::Engine& engine, int64_t max_batch_tokens,
                                             const Clock& clock) {
  cost::StepCost cost;
  Probe probe(engine, max_batch_tokens, clock);
  if (probe.sequences() == 0) return cost;
  Probed warm_up{.sequences = 1};
  RETURN_IF_ERROR(probe.Run(warm_up));
  std::array<Probed, 4> steps = {{{.sequences = 1},
                                  {.sequences = probe.sequences()},
                                  {.generate = true, .sequences = 1},
                                  {.generate = true, .sequences = probe.sequences()}}};
  const absl::Time start = clock.Now();
  for (int round = 0; round < kRoundsMax; ++round) {
    if (round > 0 && clock.Now() - start >= kRoundsBudget) break;
    for (Probed& step : steps) RETURN_IF_ERROR(probe.Run(step));
  }
  Reconcile(steps);
  for (const Probed& step : steps) cost.Observe(step.shape, step.us);
  return cost;
}

cost::StepCost KnownStepCost(const cost::StepProfile& clock) {
  cost::StepCost cost;
  for (const bool generate : {false, true}) {
    for (const int64_t sequences : {int64_t{1}, kSequences}) {
      cost::StepShape shape;
      for (int64_t i = 0; i < sequences; ++i)
        shape.Add(generate ? kPromptTokens : 0, generate ? 1 : kPromptTokens, generate);
      cost.Observe(shape, clock.Predict(shape).us);
    }
  }
  return cost;
}

}  // namespace tandem::node
