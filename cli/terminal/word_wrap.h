// Breaks a text that arrives in pieces into lines of a terminal's width, between words.
//   WordWrap wrap(40);  Print(wrap.Append("The capi"));  Print(wrap.Append("tal of"));
//   Print(wrap.Flush());
// A word appears when it is whole. A word wider than a line is left to the terminal. Lines of a
// fenced block (```) are left as they are, so that code can be copied. The output does not depend
// on how the text was cut into pieces.
//   Widths: two columns for East Asian wide characters, none for combining ones and for escape
//   sequences (ESC [ … letter), such as colours.
// Thread safety: none; one thread at a time. Owner: a command.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem::cli {

class WordWrap {
 public:
  // `columns` < 1: breaks nothing.
  explicit WordWrap(int columns) : columns_(columns) {}

  // What can be shown now that `text` (UTF-8) has come. An unfinished word is held back; of one
  // wider than a line nothing is.
  std::string Append(absl::string_view text);
  // The rest. The stream may be used again.
  std::string Flush();

 private:
  void Take(absl::string_view character, std::string& out);
  void EndWord(std::string& out);
  void EndLine(std::string& out);

  const int columns_;
  std::string partial_;  // the start of a character or of an escape sequence
  std::string spaces_;   // between the line and the word
  std::string word_;
  int line_columns_ = 0, space_columns_ = 0, word_columns_ = 0;
  std::string line_start_;  // the line's first characters that are no spaces, at most three
  bool fence_ = false;
  bool overlong_ = false;  // in a word that is wider than a line, most of which is out already
};

}  // namespace tandem::cli
