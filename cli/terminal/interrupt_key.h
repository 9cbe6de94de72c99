// Whether Ctrl-C on standard input's terminal interrupts, or is a key as any other. A command that
// reads lines wants it as a key, also between two reads: a line editor sees it then when it reads
// next, and none is lost. While the command works for its user, it interrupts. Keys that are typed
// while no editor reads are kept as they are, and shown when they are read.
// Thread safety: none; the command's thread. Owner: a command. The destructor restores the
// terminal.
#pragma once

#include <termios.h>

namespace tandem::cli {

class InterruptKey {
 public:
  // Makes it a key as any other. Does nothing if standard input is no terminal.
  InterruptKey();
  ~InterruptKey();
  InterruptKey(const InterruptKey&) = delete;
  InterruptKey& operator=(const InterruptKey&) = delete;

  void SetInterrupts(bool interrupts);

 private:
  termios before_ = {};
  bool is_terminal_ = false;
};

}  // namespace tandem::cli
