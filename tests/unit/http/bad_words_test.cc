// Goal: each text of bad_words becomes the tokens that spell it, at a text's start and within it,
// and none is left out silently.
#include "router/front_end/bad_words.h"

#include <gmock/gmock.h>

#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A token for each byte; a space and the letter after it are one. Of NUL there is none.
std::vector<TokenId> Encode(absl::string_view text) {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\0') continue;
    const bool joins = text[i] == ' ' && i + 1 < text.size() && text[i + 1] != ' ';
    if (joins) ++i;
    tokens.push_back((joins ? 1000 : 0) + text[i]);
  }
  return tokens;
}

TEST(BadWords, HaveASpellingAtTheStartAndOneInside) {
  std::vector<std::vector<TokenId>> out;
  ASSERT_OK(AddBadWords({"ab", " c"}, Encode, out));
  EXPECT_THAT(out, ElementsAre(ElementsAre('a', 'b'), ElementsAre(1000 + 'a', 'b'),
                               ElementsAre('c'), ElementsAre(1000 + 'c')));
}

TEST(BadWords, MayBeWhiteSpace) {
  std::vector<std::vector<TokenId>> out;
  ASSERT_OK(AddBadWords({"\n", "  ", "\t\n"}, Encode, out));
  EXPECT_THAT(out, ElementsAre(ElementsAre('\n'), ElementsAre(' ', ' '), ElementsAre('\t', '\n')));
}

// As SentencePiece's models do: a text begins with a space that is not written.
TEST(BadWords, OfWhiteSpaceAreThoseWithinATextWhateverTheTokenizerPutsBefore) {
  const auto encode = [](absl::string_view text) {
    std::vector<TokenId> tokens = Encode(text);
    tokens.insert(tokens.begin(), 1);
    return tokens;
  };
  std::vector<std::vector<TokenId>> out;
  ASSERT_OK(AddBadWords({"\n", " "}, encode, out));
  EXPECT_THAT(out, ElementsAre(ElementsAre('\n'), ElementsAre(' ')));
}

TEST(BadWords, AreRefusedByNameWithoutAToken) {
  std::vector<std::vector<TokenId>> out;
  EXPECT_THAT(AddBadWords({"a", std::string(1, '\0')}, Encode, out),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bad_words[1]: ")));
}

}  // namespace
}  // namespace tandem::router
