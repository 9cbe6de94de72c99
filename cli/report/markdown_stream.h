// Shows a model's Markdown on a terminal while it arrives, piece by piece.
//   bold and headings in bold, `code` and fenced blocks in colour, their marks left out
// The output does not depend on how the text was cut into pieces. A style ends with its line at the
// latest (a fenced block: with its fence), so an unpaired mark affects one line. Control characters
// are removed: an answer cannot move the cursor or recolour the terminal.
// Thread safety: none; one thread at a time. Owner: a command.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem::cli {

class MarkdownStream {
 public:
  // What can be shown now that `text` has come; marks that may go on are held back.
  std::string Append(absl::string_view text);
  // The rest, with all styles ended. The stream may be used again.
  std::string Flush();

 private:
  void Take(char c, std::string& out);
  void EndRun(std::string& out);
  void Style(std::string& out) const;

  // Marks seen and not acted upon: a run of one of `*`, '`' or, at a line's start, '#'.
  char run_ = 0;
  int run_length_ = 0;
  bool run_at_start_ = false;  // of its line
  bool line_start_ = true;
  bool bold_ = false, code_ = false, heading_ = false;
  bool fence_ = false;
  bool c1_begun_ = false;  // by a byte that is held back
};

}  // namespace tandem::cli
