#include "cli/chaos/baseline.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kReadyWithin = absl::Seconds(180);
// How many more connections a process may have at the end than before: to peers that started later.
constexpr int64_t kFilesSlack = 16;

absl::Status Interrupted() { return absl::CancelledError("interrupted"); }

}  // namespace

absl::Status AwaitReady(ChaosCluster& cluster, const StopCheck& stopped) {
  const absl::Time deadline = RealClock().Now() + kReadyWithin;
  while (true) {
    ASSIGN_OR_RETURN(const bool ready, cluster.Ready());
    if (ready) return absl::OkStatus();
    if (RealClock().Now() > deadline)
      return absl::DeadlineExceededError(
          absl::StrCat("the cluster is not ready within ", absl::FormatDuration(kReadyWithin)));
    if (stopped(absl::Milliseconds(50))) return Interrupted();
  }
}

absl::StatusOr<std::vector<std::string>> FindLeaks(ChaosCluster& cluster,
                                                   const ChaosTopology& topology,
                                                   const std::vector<int64_t>& files_before,
                                                   const StopCheck& stopped) {
  const absl::Status back = AwaitReady(cluster, stopped);
  if (absl::IsCancelled(back)) return back;
  if (!back.ok()) return std::vector<std::string>{std::string(back.message())};
  std::vector<std::string> leaks;
  // All processes are back.
  const absl::Time deadline = RealClock().Now() + ChaosCluster::kReleasedWithin;
  std::string held;
  while (!(held = cluster.Holdings()).empty() && RealClock().Now() < deadline)
    if (stopped(absl::Milliseconds(100))) return Interrupted();
  if (!held.empty()) leaks.push_back(held);
  const std::vector<int64_t> files = cluster.OpenFiles();
  for (int i = 0; i < topology.processes(); ++i) {
    const auto at = static_cast<size_t>(i);
    if (files[at] > files_before[at] + kFilesSlack)
      leaks.push_back(absl::StrCat(topology.NameOf(i), " has ", files[at],
                                   " open files, before the faults ", files_before[at]));
  }
  return leaks;
}

}  // namespace tandem::cli
