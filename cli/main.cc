// tandem: the command line of a cluster.
#include "cli/command_line/commands.h"

int main(int argc, char** argv) {
  return tandem::cli::TandemMain({argv + 1, argv + argc}, tandem::config::Environment());
}
