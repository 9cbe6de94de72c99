// What compiling one constraint may cost. A step reads or writes one element: a range of a
// character set, an edge or a state of an automaton, a keyword or a value of a schema. Memory grows
// with steps, so the budget bounds it, too.
//
// Steps are counted and not timed, so that a router and every node refuse the same constraints.
// Every loop of the compiler whose length a client decides spends from the budget first.
// Thread safety: none; one thread compiles one constraint. Owner: Compile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem::guided {

class CompileBudget {
 public:
  // A hundred times what a schema of 100 properties takes; about half a second of a core.
  static constexpr int64_t kStepsMax = 20'000'000;

  explicit CompileBudget(int64_t steps_max = kStepsMax) : steps_max_(steps_max) {}

  // Spends `steps`. False once the budget is exceeded, and from then on.
  bool Spend(size_t steps) {
    steps_ += static_cast<int64_t>(steps);
    return steps_ <= steps_max_;
  }
  int64_t steps() const { return steps_; }
  bool exceeded() const { return steps_ > steps_max_; }

  // kInvalidArgument, which names the bound, when the budget is exceeded.
  absl::Status status() const {
    if (!exceeded()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the constraint is too large: compiling it takes more than ", steps_max_, " steps"));
  }

 private:
  const int64_t steps_max_;
  int64_t steps_ = 0;
};

}  // namespace tandem::guided
