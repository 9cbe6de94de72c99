// `tandem debts`: implements NewDebtsCommand (cli/command_line/commands.h).
#include <unistd.h>

#include <cstdio>

#include "cli/client/client.h"
#include "cli/client/router_access.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/status/debt_table.h"
#include "cli/terminal/print_lines.h"
#include "common/config/process_main.h"

namespace tandem::cli {
namespace {

class DebtsCommand final : public Command {
 public:
  DebtsCommand() : schema_("tandem debts", "Shows which nodes have borrowed KV blocks of which.") {
    RegisterRouterAccess(schema_, access_);
    schema_.Add("json", &json_, "The debts as JSON.");
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    if (auto code = ParseArguments(schema_, args, env, nullptr)) return *code;
    const auto client = Connect(access_);
    if (!client.ok()) return ReportError(schema_, client.status());
    const auto status = (*client)->GetStatus(absl::Seconds(5));
    if (!status.ok()) return ReportError(schema_, status.status());
    if (json_) {
      std::printf("%s\n", DebtsJson(*status).dump(2).c_str());
    } else {
      PrintLines(DebtLines(*status), DescribeTerminal(STDOUT_FILENO, env));
    }
    return config::kExitOk;
  }

 private:
  config::Schema schema_;
  RouterAccess access_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> NewDebtsCommand() { return std::make_unique<DebtsCommand>(); }

}  // namespace tandem::cli
