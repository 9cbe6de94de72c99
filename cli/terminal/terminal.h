// What standard output, or another descriptor, is: a terminal of some size, or a file or pipe.
// Thread safety: pure functions of the descriptor and the environment.
#pragma once

#include <map>
#include <string>

namespace tandem::cli {

struct Terminal {
  bool is_terminal = false;
  bool colours = false;  // it shows colours, and the user wants them: no NO_COLOR in `env`
  int columns = 0;       // 0 = unknown, or no terminal
  int rows = 0;
};

Terminal DescribeTerminal(int fd, const std::map<std::string, std::string>& env);

}  // namespace tandem::cli
