#include "common/node/step_probe.h"

#include <algorithm>
#include <vector>

#include "common/base/status_macros.h"

namespace tandem::node {
namespace {

constexpr int64_t kSequences = 4, kPromptTokens = 8;

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

  // Computes the prompts of the first `sequences` sequences, or their generated rows.
  absl::Status Run(int64_t sequences, bool generate, cost::StepCost* cost) {
    std::vector<engine::SequenceSlice> slices;
    cost::StepShape shape;
    const auto all = absl::MakeConstSpan(tokens_);
    for (int64_t i = 0; i < sequences; ++i) {
      const int64_t first = generate ? prompt_tokens_ : 0;
      const int64_t rows = generate ? 1 : prompt_tokens_;
      slices.push_back({.tokens = all.subspan(0, first + rows),
                        .num_computed = first,
                        .num_new = rows,
                        .blocks = tables_[i],
                        .sample = generate,
                        .prompt_tokens = prompt_tokens_,
                        .sampling = &sampling_});
      shape.Add(first, rows, generate);
    }
    const absl::Time start = clock_.Now();
    RETURN_IF_ERROR(engine_.Step(slices, [](int) {}).status());
    if (cost != nullptr) cost->Observe(shape, absl::ToDoubleMicroseconds(clock_.Now() - start));
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

}  // namespace

absl::StatusOr<cost::StepCost> ProbeStepCost(engine::Engine& engine, int64_t max_batch_tokens,
                                             const Clock& clock) {
  cost::StepCost cost;
  Probe probe(engine, max_batch_tokens, clock);
  if (probe.sequences() == 0) return cost;
  RETURN_IF_ERROR(probe.Run(1, /*generate=*/false, nullptr));
  for (const bool generate : {false, true}) {
    for (const int64_t sequences : {int64_t{1}, probe.sequences()})
      RETURN_IF_ERROR(probe.Run(sequences, generate, &cost));
  }
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
