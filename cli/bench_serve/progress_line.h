// Shows on standard error how far a load has come: on a terminal one line that changes with every
// call, elsewhere (a pipe, a file) a new line every kPeriod.
// Thread safety: none; one thread at a time. Owner: the bench serve command.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "cli/bench_serve/load_run.h"

namespace tandem::cli {

class ProgressLine {
 public:
  static constexpr absl::Duration kPeriod = absl::Seconds(5);

  // Shows nothing if not `enabled`.
  explicit ProgressLine(bool enabled);

  void Show(const LoadProgress& progress);
  // The line's text, in at most `columns` characters.
  static std::string Text(const LoadProgress& progress, int columns);
  // Removes the line from a terminal. Lines that were written elsewhere stay.
  void Clear();

 private:
  const bool enabled_;
  const bool terminal_;
  absl::Duration next_ = kPeriod;  // of the load's time; without a terminal
};

}  // namespace tandem::cli
