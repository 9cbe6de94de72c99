// The flags that say where a measurement's result goes, and which requests its goodput counts: of
// every command of `tandem bench` that has them, and of `tandem sim trace`.
// Thread safety: none; used by the main thread. Owner: the command.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/files/named_file.h"
#include "common/config/schema.h"

namespace tandem::cli {

// The group of these flags in a command's help.
inline constexpr char kResultsGroup[] = "Results";

struct ResultFlags {
  std::string json, html, csv;  // paths; - is standard output, empty none
  bool progress = true;

  std::vector<NamedFile> files() const {
    return {{"--json", json}, {"--csv", csv}, {"--html", html}};
  }
};

// Adds --json and --html; a command that writes CSV adds --csv itself. REQUIRES: `flags` outlives
// `schema`; so for the functions below.
void RegisterResultFiles(config::Schema& schema, ResultFlags& flags);
// Adds --progress.
void RegisterProgress(config::Schema& schema, ResultFlags& flags);
// Prints `table`, unless a file takes standard output, and writes the files of --json and --html
// that were asked for; only for those `json` and `html` are called. Errors: WriteOutput's.
absl::Status PublishResult(const ResultFlags& flags, absl::string_view table,
                           absl::FunctionRef<std::string()> json,
                           absl::FunctionRef<std::string()> html);

// Limits for an answered request's latency; 0 = none.
struct ObjectiveFlags {
  absl::Duration ttft;  // its time to first token
  absl::Duration itl;   // the 99th percentile of its gaps between tokens
};

// Adds --slo-ttft and --slo-itl.
void RegisterObjectives(config::Schema& schema, ObjectiveFlags& flags);

}  // namespace tandem::cli
