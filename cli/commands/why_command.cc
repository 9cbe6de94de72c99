// `tandem why`: implements NewWhyCommand (cli/command_line/commands.h).
#include <cstdio>

#include "cli/client/client.h"
#include "cli/client/router_access.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/report/message_json.h"
#include "cli/report/placement_text.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"

namespace tandem::cli {
namespace {

class WhyCommand final : public Command {
 public:
  WhyCommand()
      : schema_("tandem why", "Shows which nodes a finished request could have had, and why not.") {
    RegisterRouterAccess(schema_, access_);
    schema_.Add("json", &json_, "The decisions as JSON.");
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
    ASSIGN_OR_RETURN(v1::RequestTrace trace, client->GetTrace(request_id));
    std::string text = FormatPlacements(trace);
    if (json_) {
      trace.clear_sequences();
      text = ToJson(trace).dump(2) + "\n";
    }
    std::fputs(text.c_str(), stdout);
    return absl::OkStatus();
  }

  config::Schema schema_;
  RouterAccess access_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> NewWhyCommand() { return std::make_unique<WhyCommand>(); }

}  // namespace tandem::cli
