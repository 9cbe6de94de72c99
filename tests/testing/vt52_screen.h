// What a terminal shows after a program wrote to it, for programs that move the cursor. Understands
// the VT52, the simplest terminal that ncurses draws whole screens on (TERM=vt52).
// Thread safety: none; the test's thread uses it.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace tandem::testing {

class Vt52Screen {
 public:
  Vt52Screen(int columns, int rows)
      : columns_(columns), rows_(static_cast<size_t>(rows), std::string(columns, ' ')) {}

  // The screen, line by line, after `written`: all that a program wrote to a cleared terminal.
  static std::string After(absl::string_view written, int columns, int rows) {
    Vt52Screen screen(columns, rows);
    for (size_t i = 0; i < written.size(); ++i) i += screen.Take(written.substr(i));
    return absl::StrJoin(screen.rows_, "\n");
  }

 private:
  // Handles the text's first character or sequence; returns how many further ones it took.
  size_t Take(absl::string_view text) {
    const char c = text[0];
    if (c == '\033') return TakeEscape(text.substr(1));
    if (c == '\r') {
      column_ = 0;
    } else if (c == '\n') {
      NextRow();
    } else if (c == '\b') {
      column_ = std::max(column_ - 1, 0);
    } else if (c == '\t') {
      column_ = std::min(column_ / 8 * 8 + 8, columns_ - 1);
    } else if (c >= 0x20 && c <= 0x7E) {
      rows_[row_][static_cast<size_t>(column_)] = c;
      column_ = std::min(column_ + 1, columns_ - 1);
    }
    return 0;
  }
  size_t TakeEscape(absl::string_view text) {
    if (text.empty()) return 0;
    const int last_row = static_cast<int>(rows_.size()) - 1;
    switch (text[0]) {
      case 'A':
        row_ = row_ == 0 ? 0 : row_ - 1;
        break;
      case 'B':
        row_ = std::min(row_ + 1, rows_.size() - 1);
        break;
      case 'C':
        column_ = std::min(column_ + 1, columns_ - 1);
        break;
      case 'D':
        column_ = std::max(column_ - 1, 0);
        break;
      case 'H':
        row_ = 0;
        column_ = 0;
        break;
      case 'I':  // up, and at the top the text moves down
        if (row_ > 0) {
          --row_;
        } else {
          rows_.pop_back();
          rows_.insert(rows_.begin(), std::string(static_cast<size_t>(columns_), ' '));
        }
        break;
      case 'J':
        ClearLine();
        for (size_t i = row_ + 1; i < rows_.size(); ++i) rows_[i].assign(rows_[i].size(), ' ');
        break;
      case 'K':
        ClearLine();
        break;
      case 'Y':
        if (text.size() < 3) return text.size();
        row_ = static_cast<size_t>(std::clamp(Position(text[1]), 0, last_row));
        column_ = std::clamp(Position(text[2]), 0, columns_ - 1);
        return 3;
      default:
        break;
    }
    return 1;
  }
  // A row or column as the terminal is told it: from a space on, beyond ASCII when it is far.
  static int Position(char c) { return static_cast<unsigned char>(c) - 32; }
  void ClearLine() { std::fill(rows_[row_].begin() + column_, rows_[row_].end(), ' '); }
  void NextRow() {
    if (row_ + 1 < rows_.size()) {
      ++row_;
      return;
    }
    rows_.erase(rows_.begin());
    rows_.push_back(std::string(static_cast<size_t>(columns_), ' '));
  }

  const int columns_;
  std::vector<std::string> rows_;
  size_t row_ = 0;
  int column_ = 0;
};

}  // namespace tandem::testing
