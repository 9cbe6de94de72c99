#include "cli/flags/result_flags.h"

#include "common/base/status_macros.h"

namespace tandem::cli {

void RegisterResultFiles(config::Schema& schema, ResultFlags& flags) {
  schema.Add("json", &flags.json,
             "A file for the result as JSON; - prints it instead of the table.",
             {.group = kResultsGroup});
  schema.Add("html", &flags.html, "A file for one self-contained page with charts; - as for json.",
             {.group = kResultsGroup});
}

void RegisterProgress(config::Schema& schema, ResultFlags& flags) {
  schema.Add("progress", &flags.progress, "Show progress on standard error.",
             {.group = kResultsGroup});
}

absl::Status PublishResult(const ResultFlags& flags, absl::string_view table,
                           absl::FunctionRef<std::string()> json,
                           absl::FunctionRef<std::string()> html) {
  PrintReport(table, flags.files());
  if (!flags.json.empty()) RETURN_IF_ERROR(WriteOutput({"--json", flags.json}, json()));
  if (!flags.html.empty()) RETURN_IF_ERROR(WriteOutput({"--html", flags.html}, html()));
  return absl::OkStatus();
}

void RegisterObjectives(config::Schema& schema, ObjectiveFlags& flags) {
  schema.Add("slo-ttft", &flags.ttft, "Goodput: limit for the time to first token; 0 = none.",
             {.min = absl::ZeroDuration(), .group = kResultsGroup});
  schema.Add("slo-itl", &flags.itl,
             "Goodput: limit for the 99th percentile of a request's own gaps; 0 = none.",
             {.min = absl::ZeroDuration(), .group = kResultsGroup});
}

}  // namespace tandem::cli
