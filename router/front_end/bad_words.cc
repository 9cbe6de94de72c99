#include "router/front_end/bad_words.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"

namespace tandem::router {
namespace {

// A tokenizer may put a mark of its own before a text, so what the text adds to another one counts.
std::vector<TokenId> EncodeBlank(
    absl::string_view blank, absl::FunctionRef<std::vector<TokenId>(absl::string_view)> encode) {
  const std::vector<TokenId> before = encode("a");
  const std::vector<TokenId> both = encode(absl::StrCat("a", blank));
  const bool is_apart =
      both.size() > before.size() && std::equal(before.begin(), before.end(), both.begin());
  if (!is_apart) return encode(blank);
  return {both.begin() + std::ssize(before), both.end()};
}

}  // namespace

absl::Status AddBadWords(const std::vector<std::string>& words,
                         absl::FunctionRef<std::vector<TokenId>(absl::string_view)> encode,
                         std::vector<std::vector<TokenId>>& out) {
  for (size_t i = 0; i < words.size(); ++i) {
    const absl::string_view bare = absl::StripLeadingAsciiWhitespace(words[i]);
    const bool is_blank = bare.empty();
    std::vector<TokenId> plain = is_blank ? EncodeBlank(words[i], encode) : encode(bare);
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
