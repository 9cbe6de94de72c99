#include "cli/bench_modes/mode_run.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::cli {

absl::StatusOr<LoadResult> RunMode(const ModeRun& run,
                                   const std::map<std::string, std::string>& env) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MeasuredCluster> cluster,
                   MeasuredCluster::Start(run.up, env, run.should_stop));
  const std::unique_ptr<Workload> workload = NewSyntheticWorkload(run.workload);
  ASSIGN_OR_RETURN(LoadResult result, cluster->Run(run.load, *workload, run.on_progress));
  cluster->Drain();
  for (const RequestRecord& record : result.records)
    if (record.ok()) return result;
  return absl::UnavailableError(
      result.records.empty()
          ? "no request was sent"
          : absl::StrCat("no request was answered: ", result.records.front().error, ": ",
                         result.records.front().message));
}

}  // namespace tandem::cli
