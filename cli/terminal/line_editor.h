// Reads lines from a terminal with editing, history and completion, by libedit.
//
//   Enter             ends the line            Alt-Enter  puts a line break into it
//   arrows, Ctrl-A …  as in a shell            Ctrl-R     searches the history
//   Tab               completes a command      Ctrl-C     gives the line up
//   Ctrl-D            on an empty line: the end
//
// Text that the terminal pastes is inserted as it is: its line breaks end no line. Its control
// characters are left out.
// Thread safety: none; one thread at a time. Owner: a command.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::cli {

struct LineEditorOptions {
  // Where lines are kept between runs, readable by this user alone; empty = nowhere. The editor
  // makes the file and its folder.
  std::string history_file;
  std::vector<std::string> commands;  // what Tab completes at a line's start
};

struct TypedLine {
  enum class Kind { kLine, kInterrupt, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;  // without the last line break; for kInterrupt what was given up
};

class LineEditor {
 public:
  // Older lines of the history are dropped.
  static constexpr int kHistoryLinesMax = 1000;
  // A pasted text is cut here.
  static constexpr size_t kPasteCharactersMax = 1 << 20;

  // REQUIRES: standard input and output are terminals. Errors: kInternal when libedit cannot start.
  // A history that cannot be read or written is no error: the lines of this run remain.
  static absl::StatusOr<std::unique_ptr<LineEditor>> Create(const LineEditorOptions& options);
  virtual ~LineEditor() = default;

  virtual TypedLine Read(const std::string& prompt) = 0;
  // Adds `text` to the history.
  virtual void Remember(const std::string& text) = 0;
};

}  // namespace tandem::cli
