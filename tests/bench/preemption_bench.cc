// Measures what preemption costs a node whose pool holds a quarter of what its requests need: rows
// that are computed again, the time until all have ended, each request's time, and the longest time
// for which a request's stream stood still. In virtual time: a step takes what a fixed profile
// says, and a storage thread copies at a fixed rate. So a run depends on its seed alone. Then, by
// the machine's clock: what a step's plan takes with a preemption and without one.
//   ninja bench_preemption && tests/bench_preemption [SEEDS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/node/lent_units.h"
#include "common/node/node_resources.h"
#include "common/request/queue_order.h"
#include "common/runtime/random.h"
#include "tests/bench/virtual_storage.h"

namespace tandem::node {
namespace {

constexpr int32_t kBlockTokens = 16, kUnitTokens = 64;

struct Range {
  uint64_t low = 0, high = 0;
};

struct Scenario {
  const char* name;
  int requests = 32;
  int answers = 1;  // sequences of a request
  Range prompt, answer;
  double arrivals_ms = 0;    // between requests, on average
  double read_block_us = 0;  // of storage; 0: there is none
  double row_us = 100;
  Range prefix = {};  // of a prompt that half of the requests begin with
  uint64_t priorities = 1;
  double lent_share = 0;  // units that other nodes keep at most, in parts of the pool
  request::QueueOrder order = request::QueueOrder::kPriority;
};

struct Request {
  SequenceInput input;
  absl::Time arrives;
};

std::vector<Request> RequestsOf(const Scenario& scenario, uint64_t seed, int64_t& need_blocks) {
  const auto random = NewSeededRandom(seed);
  const auto between = [&](const Range& range) {
    return static_cast<int64_t>(range.low + random->Below(range.high - range.low + 1));
  };
  std::vector<Request> requests;
  absl::Time at = absl::FromUnixSeconds(1000);
  const int64_t prefix = scenario.prefix.high > 0 ? between(scenario.prefix) : 0;
  for (int i = 0; i < scenario.requests; ++i) {
    const int64_t prompt = between(scenario.prompt);
    const bool begins_alike = prefix > 0 && random->Below(2) == 0;
    SequenceInput input;
    if (begins_alike) input.prompt.assign(static_cast<size_t>(prefix), 7);
    for (int64_t t = 0; t < prompt; ++t)
      input.prompt.push_back(static_cast<TokenId>(1000 + random->Below(30'000)));
    input.group = absl::StrCat("1/request-", i);
    input.priority = static_cast<int32_t>(random->Below(scenario.priorities));
    const int64_t length = std::ssize(input.prompt);
    for (int answer = 0; answer < scenario.answers; ++answer) {
      input.sequence_index = answer;
      input.stop.max_tokens = static_cast<int32_t>(between(scenario.answer));
      requests.push_back({input, at});
      const bool shares = answer > 0;
      need_blocks += (length + input.stop.max_tokens) / kBlockTokens + 1 -
                     (shares ? length / kBlockTokens : 0) -
                     (begins_alike && !shares ? prefix / kBlockTokens : 0);
    }
    at += absl::Milliseconds(scenario.arrivals_ms * 2 * static_cast<double>(random->Below(1000)) /
                             1000);
  }
  return requests;
}

struct Figures {
  int64_t rows_again = 0, preemptions = 0, preempted_most = 0, blocks_read = 0;
  absl::Duration makespan, mean, p99, stood_still;
  uint64_t streams = 0;  // a sum over all tokens
};

class Run {
 public:
  Run(const Scenario& scenario, uint64_t seed)
      : scenario_(scenario), requests_(RequestsOf(scenario, seed, need_)) {
    truth_ = {.step_us = 4000,
              .prompt_row_us = scenario.row_us,
              .prompt_attended_us = 0.02 * scenario.row_us / 100,
              .generated_row_us = 3 * scenario.row_us,
              .generated_attended_us = 0.1 * scenario.row_us / 100,
              .sampled_row_us = scenario.row_us};
  }

  Figures ToEnd(int64_t oversubscription) {
    Start(std::max<int64_t>(need_ / oversubscription, 180));
    size_t ended = 0, steps = 0;
    while (ended < requests_.size()) {
      TANDEM_CHECK(++steps < 2'000'000, "livelock: ", ended, " of ", requests_.size(), " ended");
      AdmitSome();
      ServeStorage();
      LendSome();
      if (!Step()) Idle();
      ended += End();
    }
    return Summary();
  }

 private:
  struct Active {
    size_t request = 0;
    absl::Time last = absl::InfinitePast();  // token
    int64_t preempted = 0;
    bool had_blocks = true;
  };

  void Start(int64_t blocks) {
    SchedulerOptions options;
    options.spec.model_name = "bench";
    options.spec.model_fingerprint = "f";
    options.spec.numerics_id = "n";
    options.spec.vocab_size = 50'000;
    options.spec.context_tokens = 8192;
    options.spec.layout = {.num_layers = 1,
                           .block_tokens = kBlockTokens,
                           .layer_block_bytes = VirtualStorage::kBlockBytes};
    options.num_blocks = blocks;
    options.max_sequences = 64;
    options.queue_order = scenario_.order;
    options.borrows = scenario_.lent_share > 0;
    options.spec.unit_tokens = kUnitTokens;
    units_left_ = static_cast<int64_t>(static_cast<double>(blocks) * scenario_.lent_share) *
                  kBlockTokens / kUnitTokens;
    if (scenario_.read_block_us > 0)
      options.stored_blocks = std::make_shared<const storage::StorageContents>(
          storage::StorageContents{.tiers = storage::TierSet::Of(storage::StoreTier::kHost)});
    Train(options.step_cost);
    resources_ = std::make_unique<NodeResources>(options);
    resources_->BeginRole({.generates = true});
  }
  // As a node that has run for a while.
  void Train(cost::StepCost& step_cost) const {
    const auto random = NewSeededRandom(7);
    for (int i = 0; i < 400; ++i) {
      cost::StepShape shape;
      for (uint64_t j = 0; j < 1 + random->Below(16); ++j)
        shape.Add(static_cast<int64_t>(random->Below(2048)), 1, true);
      if (i % 2 == 0)
        shape.Add(static_cast<int64_t>(random->Below(2048)),
                  2 + static_cast<int64_t>(random->Below(500)), false);
      step_cost.Observe(shape, truth_.Predict(shape).us);
    }
  }
  void AdmitSome() {
    for (; next_ < requests_.size() && requests_[next_].arrives <= now_; ++next_) {
      SequenceInput input = requests_[next_].input;
      input.arrived = requests_[next_].arrives;
      input.borrow_blocks_max = scenario_.lent_share > 0 ? 1000 : 0;
      const auto id = resources_->scheduler().Admit(std::move(input), /*generates=*/true);
      if (!id.ok()) {
        TANDEM_CHECK(absl::IsResourceExhausted(id.status()), id.status().ToString());
        return;
      }
      const Sequence& sequence = resources_->scheduler().Get(*id);
      cached_ += sequence.cached_tokens;
      resources_->scheduler().Schedule(*id);
      active_[*id] = {.request = next_};
    }
  }
  void ServeStorage() {
    storage_.Take(resources_->TakeActions(), now_);
    while (const auto event = storage_.Pop(now_)) {
      if (const auto* loaded = std::get_if<storage::BlocksLoaded>(&*event))
        figures_.blocks_read += loaded->loaded;
      resources_->OnStorage(*event, now_);
      storage_.Take(resources_->TakeActions(), now_);
    }
    resources_->OnTick(now_);
  }
  // When the pool is nearly full, the sequence with the most units to lend lends some.
  void LendSome() {
    SequenceScheduler& scheduler = resources_->scheduler();
    for (const LoanId loan : scheduler.TakeEndedLoans()) {
      units_left_ += loans_.at(loan);
      loans_.erase(loan);
    }
    const kv::BlockPool::Counts counts = scheduler.block_counts();
    if (units_left_ == 0 || counts.available() > counts.total / 16) return;
    const Sequence* richest = nullptr;
    for (const auto& [order, sequence] : scheduler.running()) {
      const auto units = LendableUnits(*sequence, scheduler.spec()).size();
      if (units > 0 &&
          (richest == nullptr || units > LendableUnits(*richest, scheduler.spec()).size()))
        richest = sequence;
    }
    if (richest == nullptr) return;
    engine::UnitSpan units = LendableUnits(*richest, scheduler.spec());
    units.end = std::min<int32_t>(
        units.end, units.first + static_cast<int32_t>(std::min<int64_t>(16, units_left_)));
    const LoanId loan(next_loan_++);
    loans_[loan] = units.size();
    units_left_ -= units.size();
    scheduler.Lend(richest->id, {.loan = loan, .units = units});
  }
  bool Step() {
    const auto slices = resources_->PlanStep(now_);
    for (auto& [id, active] : active_) {
      const bool has = !resources_->scheduler().Get(id).blocks.empty();
      if (active.had_blocks && !has) ++active.preempted;
      active.had_blocks = has;
      figures_.preempted_most = std::max(figures_.preempted_most, active.preempted);
    }
    if (slices.empty()) return false;
    std::vector<engine::SampledToken> tokens;
    for (const engine::SequenceSlice& slice : slices) {
      rows_ += slice.num_new;
      if (slice.sample)
        tokens.push_back({.token = static_cast<TokenId>(
                              (slice.tokens.back() * 31 + std::ssize(slice.tokens)) % 49'999)});
    }
    now_ += absl::Microseconds(truth_.Predict(resources_->scheduler().planned_shape()).us);
    const StepResult& step = resources_->FinishStep(tokens, now_);
    for (const StepOutcome& outcome : step.outcomes) {
      if (!outcome.sampled) continue;
      resources_->scheduler().AppendToken(outcome.id, outcome.token.token);
      figures_.streams += static_cast<uint64_t>(outcome.token.token);
      Active& active = active_.at(outcome.id);
      if (active.last != absl::InfinitePast())
        figures_.stood_still = std::max(figures_.stood_still, now_ - active.last);
      active.last = now_;
    }
    return true;
  }
  // Nothing can be computed until something arrives.
  void Idle() {
    absl::Time until = std::min(storage_.next(), now_ + absl::Milliseconds(100));
    if (next_ < requests_.size() && requests_[next_].arrives > now_)
      until = std::min(until, requests_[next_].arrives);
    now_ = std::max(until, now_ + absl::Microseconds(1));
  }
  size_t End() {
    size_t ended = 0;
    for (auto it = active_.begin(); it != active_.end();) {
      const Sequence& sequence = resources_->scheduler().Get(it->first);
      if (std::ssize(sequence.tokens) < sequence.prompt_tokens + sequence.input.stop.max_tokens) {
        ++it;
        continue;
      }
      rows_needed_ += std::ssize(sequence.tokens) - 1;
      times_.push_back(now_ - requests_[it->second.request].arrives);
      resources_->scheduler().Release(it->first);
      it = active_.erase(it);
      ++ended;
    }
    return ended;
  }
  Figures Summary() {
    std::sort(times_.begin(), times_.end());
    absl::Duration sum;
    for (const absl::Duration time : times_) sum += time;
    figures_.makespan = now_ - absl::FromUnixSeconds(1000);
    figures_.mean = sum / std::ssize(times_);
    figures_.p99 = times_[times_.size() * 99 / 100];
    figures_.preemptions = resources_->scheduler().preemption_count();
    figures_.rows_again = rows_ - (rows_needed_ - cached_);
    return figures_;
  }

  const Scenario scenario_;
  int64_t need_ = 0;
  const std::vector<Request> requests_;
  cost::StepProfile truth_;
  std::unique_ptr<NodeResources> resources_;
  VirtualStorage storage_{std::max(scenario_.read_block_us, 1.0)};
  absl::Time now_ = absl::FromUnixSeconds(1000);
  size_t next_ = 0;
  int64_t units_left_ = 0;  // that other nodes may still keep
  uint64_t next_loan_ = 1;
  std::map<LoanId, int64_t> loans_;  // their units
  std::map<SequenceId, Active> active_;
  std::vector<absl::Duration> times_;
  int64_t rows_ = 0, rows_needed_ = 0, cached_ = 0;
  Figures figures_;
};

constexpr Scenario kScenarios[] = {
    {.name = "mixed", .prompt = {100, 2000}, .answer = {50, 600}},
    {.name = "mixed, arriving", .prompt = {100, 2000}, .answer = {50, 600}, .arrivals_ms = 300},
    {.name = "long answers", .prompt = {20, 200}, .answer = {100, 1000}},
    {.name = "short rows", .prompt = {100, 2000}, .answer = {50, 600}, .row_us = 10},
    {.name = "4 answers each",
     .requests = 12,
     .answers = 4,
     .prompt = {100, 1000},
     .answer = {50, 600}},
    {.name = "shared beginning", .prompt = {100, 1000}, .answer = {50, 600}, .prefix = {500, 1000}},
    {.name = "mixed, read back", .prompt = {100, 2000}, .answer = {50, 600}, .read_block_us = 200},
    {.name = "priorities, arriving",
     .requests = 64,
     .prompt = {100, 2000},
     .answer = {50, 600},
     .arrivals_ms = 200,
     .priorities = 5},
    {.name = "priorities, long answers",
     .requests = 64,
     .prompt = {100, 2000},
     .answer = {400, 1500},
     .arrivals_ms = 400,
     .priorities = 5},
    {.name = "shortest prompt first",
     .requests = 64,
     .prompt = {100, 4000},
     .answer = {50, 600},
     .arrivals_ms = 200,
     .order = request::QueueOrder::kShortestPrompt},
    {.name = "lent", .prompt = {100, 2000}, .answer = {400, 1500}, .lent_share = 0.5},
    {.name = "priorities, lent",
     .requests = 64,
     .prompt = {100, 2000},
     .answer = {400, 1500},
     .arrivals_ms = 400,
     .priorities = 5,
     .lent_share = 0.5},
    {.name = "slow storage", .prompt = {100, 2000}, .answer = {400, 1500}, .read_block_us = 1500},
    {.name = "priorities, slow storage",
     .requests = 64,
     .prompt = {100, 2000},
     .answer = {400, 1500},
     .arrivals_ms = 400,
     .read_block_us = 1000,
     .priorities = 5},
    {.name = "long answers, read back",
     .prompt = {20, 200},
     .answer = {100, 1000},
     .read_block_us = 200},
};

void Measure(const Scenario& scenario, int seeds) {
  double rows = 0, preemptions = 0, read = 0, makespan = 0, mean = 0, p99 = 0, still = 0;
  int64_t most = 0;
  uint64_t streams = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    const Figures f = Run(scenario, static_cast<uint64_t>(seed)).ToEnd(4);
    rows += static_cast<double>(f.rows_again);
    preemptions += static_cast<double>(f.preemptions);
    read += static_cast<double>(f.blocks_read);
    makespan += absl::ToDoubleSeconds(f.makespan);
    mean += absl::ToDoubleSeconds(f.mean);
    p99 += absl::ToDoubleSeconds(f.p99);
    still += absl::ToDoubleSeconds(f.stood_still);
    most = std::max(most, f.preempted_most);
    streams += f.streams;
  }
  std::printf("| %s | %.0f | %.1f | %ld | %.0f | %.2f | %.2f | %.2f | %.2f | %lx |\n",
              scenario.name, rows / seeds, preemptions / seeds, static_cast<long>(most),
              read / seeds, makespan / seeds, mean / seeds, p99 / seeds, still / seeds,
              static_cast<unsigned long>(streams));
  std::fflush(stdout);
}

// What planning a step takes with 256 sequences whose pool is full, by the machine's clock.
void Time() {
  constexpr int kSequences = 256;
  SchedulerOptions options;
  options.spec.context_tokens = 8192;
  options.spec.layout = {.num_layers = 1,
                         .block_tokens = kBlockTokens,
                         .layer_block_bytes = VirtualStorage::kBlockBytes};
  options.num_blocks = kSequences * 35;
  options.max_batch_tokens = 2048;
  options.max_sequences = kSequences;
  for (int i = 1; i < 100; ++i) {
    cost::StepShape shape;
    shape.Add(i, 1 + i % 7, true);
    options.step_cost.Observe(shape, 1000 + 10 * shape.prompt_rows);
  }
  SequenceScheduler scheduler(options);
  for (int i = 0; i < kSequences; ++i) {
    SequenceInput input;
    input.prompt.assign(static_cast<size_t>(400 + i % 128), i);
    input.group = absl::StrCat("1/a-request-with-a-long-name-", i);
    input.stop.max_tokens = 4000;
    const auto id = scheduler.Admit(std::move(input), /*generates=*/true);
    TANDEM_CHECK(id.ok(), id.status().ToString());
    scheduler.Schedule(*id);
  }
  std::vector<double> quiet, preempting;
  for (int i = 0; i < 3000; ++i) {
    const int64_t before = scheduler.preemption_count();
    const auto began = std::chrono::steady_clock::now();
    scheduler.PlanStep();
    const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - began;
    const int64_t victims = scheduler.preemption_count() - before;
    if (victims == 0 && scheduler.prefill_tokens_waiting() == 0) quiet.push_back(us.count());
    if (victims == 1) preempting.push_back(us.count());
    const StepResult& step = scheduler.FinishStep(std::vector<engine::SampledToken>(
        static_cast<size_t>(scheduler.planned_shape().sampled_rows), {.token = 65}));
    for (const StepOutcome& outcome : step.outcomes)
      if (outcome.sampled) scheduler.AppendSampled(outcome);
  }
  const auto print = [](const char* name, std::vector<double>& all) {
    std::sort(all.begin(), all.end());
    if (all.empty()) return;
    std::printf("plan of a step %s: %zu, p50 %.1f us, p99 %.1f us\n", name, all.size(),
                all[all.size() / 2], all[all.size() * 99 / 100]);
  };
  print("without preemption", quiet);
  print("with one", preempting);
}

}  // namespace
}  // namespace tandem::node

int main(int argc, char** argv) {
  const int seeds = argc > 1 ? std::atoi(argv[1]) : 20;
  std::printf(
      "seeds 1 to %d, means over them\n\n"
      "| Requests | rows again | preemptions | most of one | blocks read | all ended, s | mean, s "
      "| p99, s | stood still, s | streams |\n|---|---|---|---|---|---|---|---|---|---|\n",
      seeds);
  for (const auto& scenario : tandem::node::kScenarios) tandem::node::Measure(scenario, seeds);
  tandem::node::Time();
  return 0;
}
