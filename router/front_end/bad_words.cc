#include "router/front_end/bad_words.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tandem::router {

void AddBadWords(const std::vector<std::string>& words,
                 absl::FunctionRef<std::vector<TokenId>(absl::string_view)> encode,
                 std::vector<std::vector<TokenId>>& out) {
  for (const std::string& word : words) {
    const absl::string_view bare = absl::StripLeadingAsciiWhitespace(word);
    std::vector<TokenId> plain = encode(bare);
    std::vector<TokenId> spaced = encode(absl::StrCat(" ", bare));
    if (plain.empty()) continue;
    const bool counts = spaced.size() == plain.size() && spaced[0] != plain[0];
    out.push_back(std::move(plain));
    if (counts) out.push_back(std::move(spaced));
  }
}

}  // namespace tandem::router
