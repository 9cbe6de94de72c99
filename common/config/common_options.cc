#include "common/config/common_options.h"

namespace tandem::config {

void RegisterCommonOptions(Schema& schema, CommonOptions& options) {
  schema.Add("model", &options.model, "A known model's name, a .gguf file or a checkpoint folder.",
             {.group = "Model"});
  schema.Add("engine", &options.engine,
             "What nodes run. cpu: the model, on the device that nodes name; hash: a simulated "
             "model, for tests.",
             {.group = "Model", .choices = {"cpu", "hash"}});
  schema.Add("fleet-secret-file", &options.fleet_secret_file,
             "File with the fleet's secret, the same on all routers and nodes; a node proves with "
             "it that it belongs to the fleet. Empty = any node may join.",
             {.group = "Network"});
  schema.Add("drain-timeout", &options.drain_timeout,
             "How long running work may go on after SIGTERM or Ctrl-C.", {.group = "Lifecycle"});
  schema.Add("log-level", &options.log_level, "Lowest level that is logged.",
             {.group = "Lifecycle", .choices = {"debug", "info", "warning", "error"}});
}

}  // namespace tandem::config
