#include "cli/terminal/interrupt_key.h"

#include <unistd.h>

namespace tandem::cli {

InterruptKey::InterruptKey() {
  is_terminal_ = tcgetattr(STDIN_FILENO, &before_) == 0;
  SetInterrupts(false);
}

InterruptKey::~InterruptKey() {
  if (is_terminal_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

void InterruptKey::SetInterrupts(bool interrupts) {
  termios now;
  if (!is_terminal_ || tcgetattr(STDIN_FILENO, &now) != 0) return;
  // A terminal that gathers whole lines, or shows keys itself, would do so with what is typed
  // ahead.
  now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  now.c_cc[VMIN] = 1;
  now.c_cc[VTIME] = 0;
  if (interrupts) {
    now.c_lflag |= ISIG;
  } else {
    now.c_lflag &= ~static_cast<tcflag_t>(ISIG);
  }
  tcsetattr(STDIN_FILENO, TCSANOW, &now);
}

}  // namespace tandem::cli
