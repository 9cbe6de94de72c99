#include "cli/terminal/print_lines.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>

namespace tandem::cli {
namespace {

const char* ColourOf(StyledLine::Style style) {
  switch (style) {
    case StyledLine::Style::kPlain:
      return "";
    case StyledLine::Style::kHeading:
      return "\033[1m";
    case StyledLine::Style::kHot:
      return "\033[31m";
    case StyledLine::Style::kDim:
      return "\033[2m";
  }
  return "";
}

}  // namespace

void PrintLines(const StyledLines& lines, const Terminal& terminal) {
  for (const StyledLine& line : lines) {
    const char* colour = terminal.colours ? ColourOf(line.style) : "";
    std::printf("%s%s%s\n", colour, line.text.c_str(), *colour == '\0' ? "" : "\033[0m");
  }
  std::fflush(stdout);
}

bool OutputIsLost() {
  pollfd out = {.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  return std::ferror(stdout) != 0 || (poll(&out, 1, 0) > 0 && (out.revents & POLLERR) != 0);
}

}  // namespace tandem::cli
