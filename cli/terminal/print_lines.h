// Prints styled lines to standard output, in colours where the terminal shows them; says when
// they have no reader any more.
// Thread safety: the main thread.
#pragma once

#include "cli/terminal/styled_line.h"
#include "cli/terminal/terminal.h"

namespace tandem::cli {

// `terminal`: what standard output is.
void PrintLines(const StyledLines& lines, const Terminal& terminal);
// Whether a write to standard output has failed, or its reader has left.
bool OutputIsLost();

}  // namespace tandem::cli
