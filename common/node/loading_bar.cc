#include "common/node/loading_bar.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_format.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"
#include "common/telemetry/progress_bar.h"

namespace tandem::node {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(100);

}  // namespace

LoadingBar::Form LoadingBar::FormOf(const std::string& choice, const std::string& log_format) {
  if (choice == "lines") return Form::kLines;
  const bool draws = choice == "auto" && log_format != "json" && isatty(STDERR_FILENO) != 0;
  return draws ? Form::kTerminal : Form::kNone;
}

void LoadingBar::Show(const engine::LoadProgress& progress) {
  if (form_ == Form::kNone) return;
  const bool ends = progress.done >= progress.all;
  const absl::Time now = RealClock().Now();
  const auto percent = static_cast<int>(100 * progress.done / progress.all);
  const absl::MutexLock lock(&mutex_);
  // A thread may be late with what it has to say of a stage.
  if (progress.stage == over_ || (!ends && (now < next_ || percent <= percent_))) return;
  next_ = now + kPeriod;
  percent_ = ends ? -1 : percent;  // the next stage begins anew
  if (ends) over_ = std::string(progress.stage);
  if (form_ == Form::kLines) {
    Log(LogLevel::kInfo, "loading weights", {{"stage", progress.stage}, {"percent", percent}});
  } else if (ends) {
    std::fputs("\r\033[K", stderr);
  } else {
    const double share = static_cast<double>(progress.done) / static_cast<double>(progress.all);
    absl::FPrintF(stderr, "\r\033[K%s%s%s weights %s", node_, node_.empty() ? "" : " ",
                  progress.stage, ProgressBar(share));
  }
  std::fflush(stderr);
}

}  // namespace tandem::node
