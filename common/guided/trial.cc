#include "common/guided/trial.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/guided/state_graph.h"
#include "common/guided/token_mask.h"

namespace tandem::guided {
namespace {

// Bound on the memory of a trial's graph.
constexpr size_t kTrialBytesMax = size_t{32} << 20;

// One state of each class that no token tells apart, then the others.
std::vector<StateId> StatesByAlias(const Program& program) {
  std::vector<StateId> states(program.states.size());
  for (StateId s = 0; s < states.size(); ++s) states[s] = s;
  std::stable_partition(states.begin(), states.end(),
                        [&](StateId s) { return program.states[s].alias == s; });
  return states;
}

class Search {
 public:
  Search(const Program& program, const Vocabulary& vocabulary)
      : program_(program), vocabulary_(vocabulary), graph_(program) {}

  absl::Status Run() {
    Visit(graph_.start());
    for (const StateId state : StatesByAlias(program_)) {
      if (work() > kSearchWorkMax / 2 || graph_.bytes() > kTrialBytesMax / 2) break;
      RETURN_IF_ERROR(CheckOverflow([&] { return graph_.At(state); }));
    }
    while (!open_.empty() && work() < kSearchWorkMax && graph_.bytes() < kTrialBytesMax) {
      const auto [readings, fresh, negative] = *open_.rbegin();
      open_.erase(std::prev(open_.end()));
      const auto config = static_cast<ConfigId>(-negative);
      if (readings >= 2 * readings_masked_) {
        const uint64_t before = graph_.work();
        RETURN_IF_ERROR(ComputeMask(graph_, config, vocabulary_).status());
        mask_work_ += graph_.work() - before;
        readings_masked_ = readings;
      }
      for (const uint8_t byte : graph_.DistinctBytes(config)) {
        RETURN_IF_ERROR(CheckOverflow([&] { return graph_.Step(config, byte); }));
      }
    }
    return absl::OkStatus();
  }
  // After Run. Every text leads from a place that was visited to another one.
  bool visited_all() const { return open_.empty(); }

 private:
  uint64_t work() const { return graph_.work() - mask_work_; }

  template <typename Compute>
  absl::Status CheckOverflow(const Compute& compute) {
    const int64_t overflows = graph_.overflows();
    const ConfigId config = compute();
    if (graph_.overflows() > overflows) {
      return absl::InvalidArgumentError(
          absl::StrCat("guided: the constraint is too ambiguous: a text can be read in more than ",
                       kThreadsMax, " ways"));
    }
    if (config != kDeadConfig) Visit(config);
    return absl::OkStatus();
  }

  void Visit(ConfigId config) {
    if (!seen_.insert(config).second) return;
    // Places that no token tells apart wait until the others are visited. Behind them may lie what
    // differs.
    const bool fresh = representatives_.insert(graph_.Representative(config)).second;
    open_.emplace(graph_.Readings(config), fresh, -static_cast<int64_t>(config));
  }

  const Program& program_;
  const Vocabulary& vocabulary_;
  StateGraph graph_;  // of its own: most of what it finds no answer will meet
  uint64_t mask_work_ = 0;
  size_t readings_masked_ = 0;
  // What is to be visited: its readings, whether it is fresh, and its id, negative so that of
  // equals the first is taken. Bound: kSearchWorkMax, because each has taken work.
  std::set<std::tuple<size_t, bool, int64_t>> open_;
  // Bound: as open_, both.
  absl::flat_hash_set<ConfigId> seen_, representatives_;
};

// Counts the states that texts of a few bytes lead to.
class Reach {
 public:
  // Four bytes tell a word list from a string of any letters, and are walked fast.
  static constexpr int kBytes = 4;
  static constexpr size_t kStatesMax = 4096;

  explicit Reach(const Program& program) : program_(program), marks_(program.states.size(), 0) {}

  size_t From(StateId start) {
    ++round_;
    found_.clear();
    Add(start);
    size_t begin = 0;
    for (int byte = 0; byte < kBytes; ++byte) {
      const size_t end = found_.size();
      for (; begin < end && found_.size() < kStatesMax; ++begin) {
        for (const ByteEdge& edge : program_.BytesOf(found_[begin])) Add(edge.target);
        for (const CallEdge& call : program_.CallsOf(found_[begin])) {
          Add(call.callee);
          Add(call.after);
        }
      }
    }
    return found_.size();
  }
  uint64_t work() const { return work_; }

 private:
  void Add(StateId state) {
    ++work_;
    if (std::exchange(marks_[state], round_) != round_) found_.push_back(state);
  }

  const Program& program_;
  std::vector<uint32_t> marks_;  // by state
  std::vector<StateId> found_;   // Bound: kStatesMax and the edges of one state
  uint32_t round_ = 0;
  uint64_t work_ = 0;
};

absl::Status TryWidePlaces(const Program& program, const Vocabulary& vocabulary) {
  // A mask meets that many configurations at little cost.
  constexpr size_t kNarrow = 256;
  Reach reach(program);
  std::vector<std::pair<int64_t, StateId>> wide;  // how many, negative; the state
  for (const StateId state : StatesByAlias(program)) {
    if (reach.work() > kWideMasksWorkMax) break;
    const size_t near = reach.From(state);
    if (near > kNarrow) wide.emplace_back(-static_cast<int64_t>(near), state);
  }
  std::sort(wide.begin(), wide.end());
  StateGraph graph(program);
  for (const auto& [near, state] : wide) {
    if (graph.work() > kWideMasksWorkMax || graph.bytes() > kTrialBytesMax) break;
    RETURN_IF_ERROR(ComputeMask(graph, graph.At(state), vocabulary).status());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> TryPlaces(const Program& program, const Vocabulary& vocabulary) {
  Search search(program, vocabulary);
  RETURN_IF_ERROR(search.Run());
  RETURN_IF_ERROR(TryWidePlaces(program, vocabulary));
  return search.visited_all();
}

}  // namespace tandem::guided
