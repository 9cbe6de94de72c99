// `tandem ps`: implements NewPsCommand (cli/command_line/commands.h).
#include <unistd.h>

#include <cstdio>

#include "cli/client/client.h"
#include "cli/client/router_access.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/report/message_json.h"
#include "cli/status/status_table.h"
#include "cli/terminal/print_lines.h"
#include "common/config/process_main.h"

namespace tandem::cli {
namespace {

class PsCommand final : public Command {
 public:
  PsCommand() : schema_("tandem ps", "Lists the requests that run now, the oldest first.") {
    RegisterRouterAccess(schema_, access_);
    schema_.Add("limit", &limit_, "How many requests to list.", {.min = 1, .max = 100});
    schema_.Add("json", &json_, "The list as JSON.");
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    if (auto code = ParseArguments(schema_, args, env, nullptr)) return *code;
    const auto client = Connect(access_);
    if (!client.ok()) return ReportError(schema_, client.status());
    const auto requests = (*client)->ListRequests(limit_, absl::Seconds(5));
    if (!requests.ok()) return ReportError(schema_, requests.status());
    if (json_) {
      std::printf("%s\n", ToJson(*requests).dump(2).c_str());
    } else {
      PrintLines(RequestLines(*requests), DescribeTerminal(STDOUT_FILENO, env));
    }
    return config::kExitOk;
  }

 private:
  config::Schema schema_;
  RouterAccess access_;
  int32_t limit_ = 20;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> NewPsCommand() { return std::make_unique<PsCommand>(); }

}  // namespace tandem::cli
