// A command that measures clusters which it starts itself. It takes the flags of `tandem up`, which
// say what those clusters are, and flags of its own for the load and the results.
// Thread safety: none; the main thread. Owner: TandemMain.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cli/cluster/cluster_plan.h"
#include "cli/command_line/commands.h"
#include "cli/flags/result_flags.h"
#include "common/config/schema.h"

namespace tandem::cli {

class ClusterBenchCommand : public Command {
 public:
  config::Schema& schema() final { return schema_; }
  // Parses, then Plan, then Measure; each error is reported and is an exit code.
  int Run(const std::vector<std::string>& args, const Environment& env) final;

 protected:
  // For the report: what a figure was measured with, by name.
  using Settings = std::vector<std::pair<std::string, std::string>>;

  ClusterBenchCommand(const std::string& name, const std::string& summary);
  // Takes on the flags of `tandem up` but `except`, with up_'s values as defaults. A measured
  // cluster prints no logs, so those flags are left out too.
  void RegisterUp(std::vector<std::string> except);

  // Checks the flags. Errors: kInvalidArgument, naming a flag and what was expected.
  virtual absl::Status Plan() = 0;
  virtual absl::Status Measure(const Environment& env) = 0;

  std::string ModelName() const {
    return up_.common.engine == "hash" ? "hash engine" : up_.common.model;
  }

  config::Schema schema_;
  UpConfig up_;
  ResultFlags results_;
};

}  // namespace tandem::cli
