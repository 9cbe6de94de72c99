// `tandem trace`: implements NewTraceCommand (cli/command_line/commands.h).
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "cli/client/client.h"
#include "cli/client/router_access.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/files/named_file.h"
#include "cli/report/trace_picture.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"

namespace tandem::cli {
namespace {

class TraceCommand final : public Command {
 public:
  TraceCommand() : schema_("tandem trace", "Shows where a finished request's time went.") {
    RegisterRouterAccess(schema_, access_);
    schema_.Add("svg", &svg_,
                "A file to draw the waterfall into; - = standard output, without the table.");
    schema_.AllowPositionals("REQUEST_ID", 1);
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    std::vector<std::string> positionals;
    if (auto code = ParseArguments(schema_, args, env, &positionals)) return *code;
    const absl::StatusOr<std::string> request_id = RequestIdNamed(positionals);
    if (!request_id.ok()) {
      ReportError(schema_, request_id.status());
      return config::kExitUsage;
    }
    const absl::Status status = Show(*request_id);
    return status.ok() ? config::kExitOk : ReportError(schema_, status);
  }

 private:
  absl::Status Show(const std::string& request_id) {
    ASSIGN_OR_RETURN(const auto client, Connect(access_));
    ASSIGN_OR_RETURN(const v1::RequestTrace trace, client->GetTrace(request_id));
    const NamedFile svg = {"--svg", svg_};
    PrintReport(FormatTrace(trace), {svg});
    return svg_.empty() ? absl::OkStatus() : WriteOutput(svg, DrawTrace(trace));
  }

  config::Schema schema_;
  RouterAccess access_;
  std::string svg_;
};

}  // namespace

std::unique_ptr<Command> NewTraceCommand() { return std::make_unique<TraceCommand>(); }

}  // namespace tandem::cli
