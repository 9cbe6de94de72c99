#include "cli/terminal/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "common/base/environment_value.h"

namespace tandem::cli {

Terminal DescribeTerminal(int fd, const std::map<std::string, std::string>& env) {
  Terminal terminal;
  terminal.is_terminal = isatty(fd) != 0;
  if (!terminal.is_terminal) return terminal;
  // https://no-color.org: any text counts, an empty one does not.
  terminal.colours =
      EnvironmentValue(env, "NO_COLOR").empty() && EnvironmentValue(env, "TERM") != "dumb";
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0) {
    terminal.columns = size.ws_col;
    terminal.rows = size.ws_row;
  }
  return terminal;
}

int StatusLineColumns(int fd) {
  constexpr int kUsualColumns = 80;
  const int columns = DescribeTerminal(fd, {}).columns;
  return (columns > 0 ? columns : kUsualColumns) - 1;
}

}  // namespace tandem::cli
