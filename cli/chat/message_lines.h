// A message that is typed in several lines.
//   a line that ends with \   goes on in the next line
//   """                       begins a message of many lines, which ends at the next """
//
//   MessageLines lines;
//   lines.Add("\"\"\"def f():"); lines.Add("  pass\"\"\"");   → complete(), Take() = "def f():\n
//   pass"
// Thread safety: none; one thread at a time. Owner: a command.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem::cli {

class MessageLines {
 public:
  // REQUIRES: the message is not complete. `line` has no line break at its end.
  void Add(absl::string_view line);
  bool complete() const { return complete_; }
  bool empty() const { return lines_ == 0; }
  // The message so far; the next line begins another one.
  std::string Take();

 private:
  std::string text_;
  int lines_ = 0;
  bool quoted_ = false, complete_ = false;
};

}  // namespace tandem::cli
