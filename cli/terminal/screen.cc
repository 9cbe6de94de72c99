#include "cli/terminal/screen.h"

// The functions of ncurses, without the macros of the same names.
#define NCURSES_NOMACROS
#include <curses.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

// ncurses defines these names, which gRPC uses too where sources are compiled together.
#undef OK
#undef ERR

namespace tandem::cli {
namespace {

constexpr int kNoKey = -1;
constexpr short kHotPair = 1;

class CursesScreen final : public Screen {
 public:
  CursesScreen(SCREEN* screen, bool colours) : screen_(screen) {
    cbreak();
    noecho();
    nonl();
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    curs_set(0);
    colours_ = colours && has_colors();
    if (!colours_) return;
    start_color();
    use_default_colors();
    init_pair(kHotPair, COLOR_RED, -1);
  }
  ~CursesScreen() override {
    endwin();
    delscreen(screen_);
  }

  Size size() override {
    winsize window{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 && window.ws_row > 0 &&
        is_term_resized(window.ws_row, window.ws_col)) {
      resizeterm(window.ws_row, window.ws_col);
    }
    return {.columns = getmaxx(stdscr), .rows = getmaxy(stdscr)};
  }

  void Draw(const StyledLines& lines) override {
    const Size now = size();
    werase(stdscr);
    const int rows = std::min(now.rows, static_cast<int>(lines.size()));
    for (int row = 0; row < rows; ++row) {
      const StyledLine& line = lines[static_cast<size_t>(row)];
      wattrset(stdscr, static_cast<int>(AttributesOf(line.style)));
      mvwaddnstr(stdscr, row, 0, line.text.c_str(), now.columns);
    }
    wrefresh(stdscr);
  }

  std::optional<Key> ReadKey() override {
    const int key = wgetch(stdscr);
    if (key == kNoKey) return std::nullopt;
    if (key == KEY_UP) return Key{.kind = Key::Kind::kUp};
    if (key == KEY_DOWN) return Key{.kind = Key::Kind::kDown};
    if (key < 0x20 || key > 0x7E) return Key{};
    return Key{.kind = Key::Kind::kCharacter, .character = static_cast<char>(key)};
  }

 private:
  attr_t AttributesOf(StyledLine::Style style) const {
    switch (style) {
      case StyledLine::Style::kPlain:
        return A_NORMAL;
      case StyledLine::Style::kHeading:
        return A_BOLD;
      case StyledLine::Style::kHot:
        return colours_ ? static_cast<attr_t>(COLOR_PAIR(kHotPair)) : A_BOLD;
      case StyledLine::Style::kDim:
        return A_DIM;
    }
    return A_NORMAL;
  }

  SCREEN* const screen_;
  bool colours_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Screen>> Screen::Create(bool colours) {
  if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) {
    return absl::FailedPreconditionError("standard input and output must be a terminal");
  }
  SCREEN* screen = newterm(nullptr, stdout, stdin);
  if (screen == nullptr) {
    return absl::FailedPreconditionError(
        "the environment variable TERM names no terminal that ncurses knows");
  }
  return std::make_unique<CursesScreen>(screen, colours);
}

}  // namespace tandem::cli
