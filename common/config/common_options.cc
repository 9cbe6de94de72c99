#include "common/config/common_options.h"

#include <unistd.h>

#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/telemetry/log.h"
#include "common/telemetry/start_log.h"

namespace tandem::config {

void RegisterCommonOptions(Schema& schema, CommonOptions& options) {
  schema.Add("model", &options.model,
             "smollm2, gemma3, hf:ORG/NAME, a .gguf file or a checkpoint folder.",
             {.group = "Model"});
  schema.Add("engine", &options.engine,
             "What nodes run. cpu: the model, on the device that nodes name; hash: a simulated "
             "model, for tests.",
             {.group = "Model", .choices = {"cpu", "hash"}});
  schema.Add("fleet-secret-file", &options.fleet_secret_file,
             "File with the fleet's secret, the same on all routers and nodes; a node proves with "
             "it that it belongs to the fleet. Empty = any node may join.",
             {.group = "Network"});
  schema.Add("fleet-tls", &options.fleet_tls,
             "TLS between routers and nodes: folder with this process's tls.crt, tls.key and "
             "ca.crt, which are read again when they change. The certificate names its role by a "
             "URI spiffe://FLEET/tandem/router, /prefill or /decode. Empty = no TLS.",
             {.group = "Network"});
  schema.Add("drain-timeout", &options.drain_timeout,
             "How long running work may go on after SIGTERM, Ctrl-C or the end of the terminal.",
             {.min = absl::ZeroDuration(), .group = "Lifecycle"});
  schema.Add("log-level", &options.log_level, "Lowest level that is logged.",
             {.group = "Lifecycle", .choices = {"debug", "info", "warning", "error"}});
  schema.Add("log-format", &options.log_format,
             "text: `key=value` after the message; json: one JSON object a line; auto: text, and "
             "for a terminal in colours unless the environment has NO_COLOR.",
             {.group = "Lifecycle", .choices = {"auto", "text", "json"}});
}

absl::Status ConfigureLog(const CommonOptions& options,
                          const std::map<std::string, std::string>& env) {
  ASSIGN_OR_RETURN(const LogLevel level, ParseLogLevel(options.log_level));
  SetLogLevel(level);
  const auto no_color = env.find("NO_COLOR");
  const bool colours = options.log_format == "auto" && isatty(STDERR_FILENO) != 0 &&
                       (no_color == env.end() || no_color->second.empty());
  SetBriefStart(options.log_format != "json" && isatty(STDERR_FILENO) != 0 &&
                level != LogLevel::kDebug);
  SetLogFormat(options.log_format == "json" ? LogFormat::kJson
               : colours                    ? LogFormat::kColours
                                            : LogFormat::kText);
  return absl::OkStatus();
}

void LogConfiguration(const Schema& schema) {
  LogStart(
      "configured",
      {{"program", schema.program()}, {"version", kVersion}, {"changed", schema.PrintChanged()}});
}

}  // namespace tandem::config
