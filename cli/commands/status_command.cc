// `tandem status`: implements NewStatusCommand (cli/command_line/commands.h).
#include <unistd.h>

#include <cstdio>

#include "cli/client/client.h"
#include "cli/client/router_access.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/report/message_json.h"
#include "cli/status/status_table.h"
#include "cli/terminal/print_lines.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "common/runtime/stop_signal.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(5);

// Cursor to the first place, and what is below it erased.
constexpr char kClearScreen[] = "\033[H\033[J";

class StatusCommand final : public Command {
 public:
  StatusCommand()
      : schema_("tandem status", "Shows nodes, load, blocks and KV transfers, in 80 columns.") {
    RegisterRouterAccess(schema_, access_);
    schema_.Add("json", &json_,
                "The whole answer as JSON; with --watch one object a line, each time.");
    schema_.Add("watch", &watch_, "Show it again and again, until Ctrl-C.");
    schema_.Add("every", &every_, "With --watch: how often.", {.min = absl::Milliseconds(100)});
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    if (auto code = ParseArguments(schema_, args, env, nullptr)) return *code;
    terminal_ = DescribeTerminal(STDOUT_FILENO, env);
    const absl::Status status = watch_ ? Watch() : Show();
    return status.ok() ? config::kExitOk : ReportError(schema_, status);
  }

 private:
  absl::Status Show() {
    ASSIGN_OR_RETURN(const auto client, Connect(access_));
    ASSIGN_OR_RETURN(const v1::GetStatusResponse status, client->GetStatus(kCallTimeout));
    Print(status);
    return absl::OkStatus();
  }

  // A router that does not answer may come back: the error is shown in its place. A reader that has
  // left does not.
  absl::Status Watch() {
    ASSIGN_OR_RETURN(const auto stop, StopSignal::Create());
    ASSIGN_OR_RETURN(const auto client, Connect(access_));
    do {
      const auto status = client->GetStatus(kCallTimeout);
      if (terminal_.is_terminal) std::fputs(kClearScreen, stdout);
      if (status.ok()) {
        Print(*status);
      } else {
        ReportError(schema_, status.status());
      }
    } while (!OutputIsLost() && stop->Wait(every_) == 0 && !OutputIsLost());
    return absl::OkStatus();
  }

  void Print(const v1::GetStatusResponse& status) const {
    if (json_) {
      std::printf("%s\n", ToJson(status).dump(watch_ ? -1 : 2).c_str());
      std::fflush(stdout);
    } else {
      PrintLines(StatusLines(status), terminal_);
    }
  }

  config::Schema schema_;
  RouterAccess access_;
  Terminal terminal_;
  bool json_ = false;
  bool watch_ = false;
  absl::Duration every_ = absl::Seconds(2);
};

}  // namespace

std::unique_ptr<Command> NewStatusCommand() { return std::make_unique<StatusCommand>(); }

}  // namespace tandem::cli
