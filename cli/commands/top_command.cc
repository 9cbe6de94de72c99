// `tandem top`: implements NewTopCommand (cli/command_line/commands.h).
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "cli/client/client.h"
#include "cli/client/router_access.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/terminal/screen.h"
#include "cli/terminal/terminal.h"
#include "cli/top/cluster_sampler.h"
#include "cli/top/top_page.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "common/runtime/clock.h"
#include "common/runtime/stop_signal.h"

namespace tandem::cli {
namespace {

// How soon a new answer, or a new size of the terminal, is seen without a key.
constexpr absl::Duration kRedraw = absl::Milliseconds(100);

class TopCommand final : public Command {
 public:
  TopCommand()
      : schema_("tandem top", "Shows a cluster as it works, on the whole terminal; q leaves.") {
    RegisterRouterAccess(schema_, access_);
    schema_.Add("every", &every_, "How often to look.", {.min = absl::Milliseconds(100)});
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    if (auto code = ParseArguments(schema_, args, env, nullptr)) return *code;
    const absl::Status status = Show(DescribeTerminal(STDOUT_FILENO, env).colours);
    if (status.ok()) return config::kExitOk;
    return ReportError(schema_, status);
  }

 private:
  absl::Status Show(bool colours) {
    // Before other threads start: they inherit its signal mask.
    ASSIGN_OR_RETURN(const auto stop, StopSignal::Create());
    ASSIGN_OR_RETURN(const auto client, Connect(access_));
    ASSIGN_OR_RETURN(const auto screen, Screen::Create(colours));
    ClusterSampler sampler(*client, every_);
    TopChoices choices;
    pollfd waits[] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                      {.fd = stop->fd(), .events = POLLIN, .revents = 0}};
    while (true) {
      const ClusterView view = sampler.View();
      const Screen::Size size = screen->size();
      screen->Draw(TopPage(access_.router, view, choices,
                           {.columns = size.columns, .rows = size.rows}, RealClock().Now()));
      poll(waits, 2, static_cast<int>(absl::ToInt64Milliseconds(kRedraw)));
      // A terminal that is gone ends the command as a signal does.
      if (waits[1].revents != 0 || (waits[0].revents & (POLLHUP | POLLERR)) != 0)
        return absl::OkStatus();
      const int nodes = view.last.has_value() ? view.last->status.nodes_size() : 0;
      while (const std::optional<Screen::Key> key = screen->ReadKey()) {
        if (key->character == 'q') return absl::OkStatus();
        Take(*key, nodes, choices, sampler);
      }
    }
  }

  static void Take(const Screen::Key& key, int nodes, TopChoices& choices,
                   ClusterSampler& sampler) {
    if (key.kind == Screen::Key::Kind::kUp)
      choices.first_node = std::max(choices.first_node - 1, 0);
    if (key.kind == Screen::Key::Kind::kDown)
      choices.first_node = std::min(choices.first_node + 1, std::max(nodes - 1, 0));
    if (key.character == 'h' || key.character == '?') choices.help = !choices.help;
    if (key.character == ' ') sampler.LookNow();
    if (key.character == 'p') {
      choices.paused = !choices.paused;
      sampler.SetPaused(choices.paused);
    }
  }

  config::Schema schema_;
  RouterAccess access_;
  absl::Duration every_ = absl::Seconds(1);
};

}  // namespace

std::unique_ptr<Command> NewTopCommand() { return std::make_unique<TopCommand>(); }

}  // namespace tandem::cli
