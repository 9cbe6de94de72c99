#include "cli/chat/message_lines.h"

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace tandem::cli {
namespace {

constexpr absl::string_view kQuotes = R"(""")";

}  // namespace

void MessageLines::Add(absl::string_view line) {
  if (lines_++ == 0) quoted_ = absl::ConsumePrefix(&line, kQuotes);
  const bool goes_on =
      quoted_ ? !absl::ConsumeSuffix(&line, kQuotes) : absl::ConsumeSuffix(&line, "\\");
  text_.append(line.data(), line.size());
  complete_ = !goes_on;
  if (goes_on) text_ += '\n';
}

std::string MessageLines::Take() {
  std::string text;
  text.swap(text_);
  *this = MessageLines();
  // """ on lines of their own add no empty lines.
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (!text.empty() && text.front() == '\n') text.erase(0, 1);
  return text;
}

}  // namespace tandem::cli
