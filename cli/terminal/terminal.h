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

// The columns of a line that is written again and again over itself on the terminal `fd`: one that
// is wider would go on in the next line, and not be written over. 79 if the width is not known.
int StatusLineColumns(int fd);

Terminal DescribeTerminal(int fd, const std::map<std::string, std::string>& env);

}  // namespace tandem::cli
