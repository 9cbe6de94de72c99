// The whole screen of a terminal, by ncurses: lines of text in, keys out.
//   ASSIGN_OR_RETURN(const auto screen, Screen::Create());
//   screen->Draw(lines);  poll(STDIN_FILENO);  while (auto key = screen->ReadKey()) ...
// Thread safety: none; one thread at a time, and one object in a process at a time. Owner: a
// command.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "cli/terminal/styled_line.h"

namespace tandem::cli {

class Screen {
 public:
  struct Size {
    int columns = 0;
    int rows = 0;
  };
  struct Key {
    enum class Kind { kCharacter, kUp, kDown, kOther };
    Kind kind = Kind::kOther;
    char character = '\0';  // of kCharacter: printable ASCII
  };

  // Shows an empty screen. The destructor shows again what stood there before.
  // `colours`: whether Draw may use them. Errors: kFailedPrecondition when standard input or output
  // is no terminal, or the environment variable TERM names none that ncurses knows.
  static absl::StatusOr<std::unique_ptr<Screen>> Create(bool colours);
  virtual ~Screen() = default;

  // The terminal's size now.
  virtual Size size() = 0;
  // Replaces what is shown. Lines beyond the size are left out.
  virtual void Draw(const StyledLines& lines) = 0;
  // A key that was pressed, without waiting; nullopt when there is none.
  virtual std::optional<Key> ReadKey() = 0;
};

}  // namespace tandem::cli
