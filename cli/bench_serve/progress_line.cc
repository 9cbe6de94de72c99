#include "cli/bench_serve/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "absl/strings/str_format.h"
#include "cli/terminal/terminal.h"

namespace tandem::cli {

ProgressLine::ProgressLine(bool enabled)
    : enabled_(enabled), terminal_(isatty(STDERR_FILENO) != 0) {}

void ProgressLine::Show(const LoadProgress& progress) {
  if (!enabled_ || (!terminal_ && progress.elapsed < next_)) return;
  next_ = progress.elapsed + kPeriod;
  const int columns =
      terminal_ ? StatusLineColumns(STDERR_FILENO) : std::numeric_limits<int>::max();
  absl::FPrintF(stderr, "%s%s%s", terminal_ ? "\r\033[K" : "", Text(progress, columns),
                terminal_ ? "" : "\n");
  std::fflush(stderr);
}

std::string ProgressLine::Text(const LoadProgress& progress, int columns) {
  const double seconds = absl::ToDoubleSeconds(progress.elapsed);
  const auto per_second = [seconds](int64_t count) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0;
  };
  const std::string text = absl::StrFormat(
      "%6.1f s  %d sent, %d ended (%d failed), %d in flight, %.1f requests/s, %.0f parts/s",
      seconds, progress.begun, progress.ended, progress.failed, progress.in_flight,
      per_second(progress.ended), per_second(progress.texts));
  return text.substr(0, static_cast<size_t>(std::max(columns, 0)));
}

void ProgressLine::Clear() {
  if (enabled_ && terminal_) std::fputs("\r\033[K", stderr);
}

}  // namespace tandem::cli
