#include "cli/report/markdown_stream.h"

#include <utility>

namespace tandem::cli {
namespace {

constexpr char kReset[] = "\033[0m";
constexpr char kBold[] = "\033[1m";
constexpr char kCode[] = "\033[36m";

// The first of the two bytes of U+0080 to U+00BF in UTF-8.
constexpr char kC1Begin = '\xC2';

constexpr int kFenceMarks = 3;
constexpr int kHeadingMarksMax = 6;

}  // namespace

std::string MarkdownStream::Append(absl::string_view text) {
  std::string out;
  for (const char c : text) Take(c, out);
  return out;
}

std::string MarkdownStream::Flush() {
  std::string out;
  EndRun(out);
  if (c1_begun_) out += kC1Begin;
  const bool styled = bold_ || code_ || heading_ || fence_;
  *this = MarkdownStream();
  if (styled) out += kReset;
  return out;
}

// The styles that hold from here on.
void MarkdownStream::Style(std::string& out) const {
  out += kReset;
  if (bold_ || heading_) out += kBold;
  if (code_ || fence_) out += kCode;
}

// Control characters are left out: the bytes below 0x20, 0x7F, and U+0080 to U+009F, whose two
// bytes may come in two parts.
void MarkdownStream::Take(char c, std::string& out) {
  const auto byte = static_cast<unsigned char>(c);
  if (std::exchange(c1_begun_, false)) {
    if (byte >= 0x80 && byte <= 0x9F) return;
    out += kC1Begin;
  }
  if (c == kC1Begin) {
    EndRun(out);
    line_start_ = false;
    c1_begun_ = true;
    return;
  }
  if (run_length_ > 0 && c == run_) {
    ++run_length_;
    return;
  }
  if (run_length_ > 0 && run_ == '#' && c == ' ' && run_length_ <= kHeadingMarksMax) {
    heading_ = true;
    run_length_ = 0;
    return Style(out);
  }
  EndRun(out);
  const bool mark =
      c == '`' || (c == '*' && !code_ && !fence_) || (c == '#' && line_start_ && !code_ && !fence_);
  if (mark) {
    run_ = c;
    run_length_ = 1;
    run_at_start_ = line_start_;
    return;
  }
  if (c == '\n') {
    const bool styled = bold_ || code_ || heading_;
    bold_ = code_ = heading_ = false;
    line_start_ = true;
    if (styled) Style(out);
    out += c;
    return;
  }
  // Spaces may stand before a fence.
  if (c != ' ') line_start_ = false;
  if (c == '\t' || (byte >= 0x20 && byte != 0x7F)) out += c;
}

// Acts upon the marks held back, now that their number is known.
void MarkdownStream::EndRun(std::string& out) {
  const int length = run_length_;
  if (length == 0) return;
  run_length_ = 0;
  line_start_ = false;
  if (run_ == '`' && run_at_start_ && length >= kFenceMarks) {
    fence_ = !fence_;
    out.append(static_cast<size_t>(length), run_);
    return Style(out);
  }
  if (run_ == '`' && length == 1 && !fence_) {
    code_ = !code_;
    return Style(out);
  }
  if (run_ == '*' && length == 2) {
    bold_ = !bold_;
    return Style(out);
  }
  out.append(static_cast<size_t>(length), run_);
}

}  // namespace tandem::cli
