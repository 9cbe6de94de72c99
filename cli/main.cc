// tandem: the command line of a cluster.
#include <cstdio>

#include "cli/command_line/commands.h"
#include "common/config/process_main.h"

int main(int argc, char** argv) {
  namespace config = tandem::config;
  const int code = tandem::cli::TandemMain({argv + 1, argv + argc}, tandem::config::Environment());
  // What could not be written must not pass for a whole result.
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written) return code;
  std::fputs("tandem: standard output: cannot be written\n", stderr);
  return code == config::kExitOk ? config::kExitFailed : code;
}
