#include "cli/pull/download_progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/terminal/terminal.h"
#include "common/runtime/clock.h"
#include "common/telemetry/progress_bar.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kLinePeriod = absl::Seconds(10), kTerminalPeriod = absl::Milliseconds(100);

}  // namespace

std::string BytesText(int64_t bytes) {
  if (bytes >= 1'000'000'000) return absl::StrFormat("%.2f GB", static_cast<double>(bytes) / 1e9);
  if (bytes >= 1'000'000) return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
  return absl::StrFormat("%.1f kB", static_cast<double>(bytes) / 1e3);
}

DownloadProgress::DownloadProgress(int64_t bytes, int64_t here, bool enabled)
    : bytes_(bytes),
      here_(here),
      enabled_(enabled),
      terminal_(isatty(STDERR_FILENO) != 0),
      before_(here),
      began_(RealClock().Now()),
      next_(began_) {}

std::string DownloadProgress::Text(const std::string& file, int64_t done, int64_t bytes,
                                   double per_second, int columns) {
  const double share = bytes > 0 ? static_cast<double>(done) / static_cast<double>(bytes) : 0;
  std::string text = absl::StrCat(ProgressBar(share), "  ", BytesText(done));
  if (per_second > 0) {
    const double left_s = static_cast<double>(bytes - done) / per_second;
    absl::StrAppendFormat(&text, ", %s/s, %.0f s left", BytesText(static_cast<int64_t>(per_second)),
                          std::max(0.0, left_s));
  }
  return absl::StrCat(text, "  ", file).substr(0, static_cast<size_t>(std::max(columns, 0)));
}

void DownloadProgress::Show(const std::string& file, int64_t bytes) {
  const absl::Time now = RealClock().Now();
  if (!enabled_ || now < next_) return;
  next_ = now + (terminal_ ? kTerminalPeriod : kLinePeriod);
  const double seconds = absl::ToDoubleSeconds(now - began_);
  const int64_t done = before_ + bytes;
  const double rate = seconds > 0.5 ? static_cast<double>(done - here_) / seconds : 0;
  const int columns =
      terminal_ ? StatusLineColumns(STDERR_FILENO) : std::numeric_limits<int>::max();
  absl::FPrintF(stderr, "%s%s%s", terminal_ ? "\r\033[K" : "",
                Text(file, done, bytes_, rate, columns), terminal_ ? "" : "\n");
  std::fflush(stderr);
}

std::string RetryText(const Retry& retry) {
  return absl::StrCat(retry.status.message(), "; trying again in ",
                      absl::FormatDuration(retry.wait), " (", retry.next, " of ", retry.attempts,
                      ")");
}

void ShowRetry(const Retry& retry) {
  absl::FPrintF(stderr, "%s%s\n", isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "", RetryText(retry));
  std::fflush(stderr);
}

void DownloadProgress::FileEnds(int64_t bytes) { before_ += bytes; }

void DownloadProgress::Clear() {
  if (enabled_ && terminal_) std::fputs("\r\033[K", stderr);
}

}  // namespace tandem::cli
