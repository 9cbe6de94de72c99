#include "cli/report/foreign_text.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "router/front_end/json_body.h"

namespace tandem::cli {

std::string OneLine(absl::string_view text) {
  // What is not UTF-8 is replaced on the way through a JSON string.
  const std::string quoted = router::JsonText(std::string(text));
  const std::string clean = router::Json::parse(quoted).get<std::string>();
  std::string line;
  for (size_t i = 0; i < clean.size(); ++i) {
    const auto byte = static_cast<unsigned char>(clean[i]);
    const auto next = static_cast<unsigned char>(i + 1 < clean.size() ? clean[i + 1] : 0);
    const size_t bytes = byte == 0xC2 && next < 0xA0 ? 2 : byte < 0x20 || byte == 0x7F ? 1 : 0;
    if (bytes == 0) {
      line += clean[i];
    } else {
      absl::StrAppend(&line, absl::CHexEscape(absl::string_view(clean).substr(i, bytes)));
      i += bytes - 1;
    }
  }
  return line;
}

}  // namespace tandem::cli
