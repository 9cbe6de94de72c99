#include "cli/terminal/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

namespace tandem::cli {
namespace {

std::string Lookup(const std::map<std::string, std::string>& env, const std::string& name) {
  const auto found = env.find(name);
  return found == env.end() ? "" : found->second;
}

}  // namespace

Terminal DescribeTerminal(int fd, const std::map<std::string, std::string>& env) {
  Terminal terminal;
  terminal.is_terminal = isatty(fd) != 0;
  if (!terminal.is_terminal) return terminal;
  // https://no-color.org: any text counts, an empty one does not.
  terminal.colours = Lookup(env, "NO_COLOR").empty() && Lookup(env, "TERM") != "dumb";
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
