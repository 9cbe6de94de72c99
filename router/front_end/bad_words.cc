#include "router/front_end/bad_words.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"

namespace tandem::router {

absl::Status AddBadWords(const std::vector<std::string>& words,
                         absl::FunctionRef<std::vector<TokenId>(absl::string_view)> encode,
                         std::vector<std::vector<TokenId>>& out) {
  for (size_t i = 0; i < words.size(); ++i) {
    const absl::string_view bare = absl::StripLeadingAsciiWhitespace(words[i]);
    const bool is_blank = bare.empty();
    std::vector<TokenId> plain = encode(is_blank ? words[i] : bare);
    if (plain.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("bad_words[", i, "]: ", Shown(words[i]),
                       ": the tokenizer makes no token of it, expected a text of some"));
    }
    std::vector<TokenId> spaced;
    if (!is_blank) spaced = encode(absl::StrCat(" ", bare));
    const bool counts = spaced.size() == plain.size() && spaced[0] != plain[0];
    out.push_back(std::move(plain));
    if (counts) out.push_back(std::move(spaced));
  }
  return absl::OkStatus();
}

}  // namespace tandem::router
