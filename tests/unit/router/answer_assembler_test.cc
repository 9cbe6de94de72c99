// Goal: the text of an answer and the stop string that ends it depend on the text alone, however it
// is cut into tokens, and equal a naive search over the whole text; nothing is given out that a
// stop string may still take back.
#include "router/front_end/answer_assembler.h"

#include <gtest/gtest.h>

#include "common/runtime/random.h"

namespace tandem::router {
namespace {

constexpr TokenId kEos = 999;

// Token i is pieces[i].
class PieceDetokenizer final : public Detokenizer {
 public:
  explicit PieceDetokenizer(std::vector<std::string> pieces, std::string rest = "")
      : pieces_(std::move(pieces)), rest_(std::move(rest)) {}
  std::string Append(TokenId token) override { return pieces_.at(token); }
  std::string Flush() override { return std::exchange(rest_, ""); }

 private:
  std::vector<std::string> pieces_;
  std::string rest_;
};

struct Answer {
  std::string text;
  std::string stop;
  bool stopped = false;
};

request::StopParams Stop(std::vector<std::string> strings, bool include = false, int min = 0) {
  request::StopParams stop;
  stop.max_tokens = 1000;
  stop.min_tokens = min;
  stop.stop = std::move(strings);
  stop.include_stop_str_in_output = include;
  return stop;
}

Answer Assemble(const std::vector<std::string>& pieces, const request::StopParams& stop) {
  AnswerAssembler assembler(std::make_unique<PieceDetokenizer>(pieces), StopRules(stop, {kEos}));
  Answer answer;
  for (size_t i = 0; i < pieces.size(); ++i) answer.text += assembler.Append(i);
  answer.text += assembler.Flush();
  answer.stopped = assembler.stopped();
  answer.stop = std::string(assembler.stop_string());
  return answer;
}

TEST(AnswerAssembler, HoldsBackOnlyWhatAStopStringMayTake) {
  AnswerAssembler assembler(
      std::make_unique<PieceDetokenizer>(std::vector<std::string>{"ab<", "x", "<e", "nd", ">y"}),
      StopRules(Stop({"<end>"}), {kEos}));
  EXPECT_EQ(assembler.Append(0), "ab");
  EXPECT_EQ(assembler.Append(1), "<x");
  EXPECT_EQ(assembler.Append(2), "");
  EXPECT_EQ(assembler.Append(3), "");
  EXPECT_FALSE(assembler.stopped());
  EXPECT_EQ(assembler.Append(4), "");
  EXPECT_TRUE(assembler.stopped());
  EXPECT_EQ(assembler.stop_string(), "<end>");
  EXPECT_EQ(assembler.Append(0), "");
  EXPECT_EQ(assembler.Flush(), "");
  // A whole string that does not count yet: its end may begin the next one.
  AnswerAssembler early(std::make_unique<PieceDetokenizer>(std::vector<std::string>{"a.."}),
                        StopRules(Stop({".."}, false, 3), {kEos}));
  EXPECT_EQ(early.Append(0), "a.");
}

// The model's own end of an answer is no stop token of the request's, even if the request names it.
TEST(AnswerAssembler, TellsWhichStopTokenEndedIt) {
  const auto ended_by = [](TokenId token, bool ignore_eos, int min_tokens = 0) {
    request::StopParams stop = Stop({"<end>"}, false, min_tokens);
    stop.stop_token_ids = {1, kEos};
    stop.ignore_eos = ignore_eos;
    AnswerAssembler assembler(
        std::make_unique<PieceDetokenizer>(std::vector<std::string>{"a", "b", "<end>"}),
        StopRules(stop, {kEos}));
    EXPECT_EQ(assembler.Append(0), "a");
    assembler.Append(token);
    return assembler.stop_token();
  };
  EXPECT_EQ(ended_by(1, false), 1);
  EXPECT_EQ(ended_by(1, false, 3), std::nullopt) << "min_tokens";
  EXPECT_EQ(ended_by(2, false), std::nullopt) << "a stop string";
  EXPECT_EQ(ended_by(kEos, false), std::nullopt);
  EXPECT_EQ(ended_by(kEos, true), kEos);
}

TEST(AnswerAssembler, Table) {
  struct Case {
    std::vector<std::string> pieces;
    request::StopParams stop;
    std::string text, found;
  };
  for (const Case& c : std::vector<Case>{
           {{"a", "b", "c"}, Stop({}), "abc", ""},
           {{"a", "b", "c"}, Stop({"zz"}), "abc", ""},
           {{"a", "b", "c"}, Stop({"abc"}), "", "abc"},
           {{"hello wor", "ld!"}, Stop({"o w", "world"}), "hell", "o w"},
           {{"hello wor", "ld!"}, Stop({"o w", "world"}, true), "hello w", "o w"},
           {{"abcd"}, Stop({"cd", "abcde"}), "ab", "cd"},     // complete first
           {{"abcd"}, Stop({"d", "bcd", "cd"}), "a", "bcd"},  // the longest at one byte
           {{"aab"}, Stop({"ab"}), "a", "ab"},                // overlaps itself
           {{"ababa", "c"}, Stop({"abac"}), "ab", "abac"},    // falls back inside a match
           {{"x", "St"}, Stop({"Stop"}), "xSt", ""},          // held back, then flushed
           {{"a\n", "\nb"}, Stop({"\n\n"}), "a", "\n\n"},
           {{"\xC3\xA9t", "\xC3\xA9"}, Stop({"t\xC3\xA9"}), "\xC3\xA9", "t\xC3\xA9"},
           // min_tokens: completed by token 1 or 2 does not count, by token 3 does.
           {{"a.", "b.", "c.", "d"}, Stop({"."}, false, 3), "a.b.c", "."},
           {{"a.", "."}, Stop({".."}, false, 3), "a..", ""},
           {{"a.", ".", "."}, Stop({".."}, false, 3), "a.", ".."},
       }) {
    const Answer answer = Assemble(c.pieces, c.stop);
    EXPECT_EQ(answer.text, c.text) << c.pieces[0];
    EXPECT_EQ(answer.stop, c.found) << c.pieces[0];
    EXPECT_EQ(answer.stopped, !c.found.empty()) << c.pieces[0];
  }
}

TEST(AnswerAssembler, ATokenThatEndsTheAnswerHasNoText) {
  request::StopParams stop = Stop({});
  stop.stop_token_ids = {1};
  const std::vector<std::string> pieces = {"a", "STOP", "b"};
  AnswerAssembler by_stop_token(std::make_unique<PieceDetokenizer>(pieces, "\xEF\xBF\xBD"),
                                StopRules(stop, {kEos}));
  EXPECT_EQ(by_stop_token.Append(0), "a");
  EXPECT_EQ(by_stop_token.Append(1), "\xEF\xBF\xBD");  // what the detokenizer still held
  EXPECT_TRUE(by_stop_token.finished());
  EXPECT_FALSE(by_stop_token.stopped());
  EXPECT_EQ(by_stop_token.Append(2), "");

  AnswerAssembler by_eos(std::make_unique<PieceDetokenizer>(pieces),
                         StopRules(Stop({"a!"}), {kEos}));
  EXPECT_EQ(by_eos.Append(0), "");
  EXPECT_EQ(by_eos.Append(kEos), "a");
  EXPECT_TRUE(by_eos.finished());

  request::StopParams min = stop;
  min.min_tokens = 3;
  AnswerAssembler too_early(std::make_unique<PieceDetokenizer>(pieces), StopRules(min, {kEos}));
  EXPECT_EQ(too_early.Append(1), "STOP");
  EXPECT_FALSE(too_early.finished());

  request::StopParams length = Stop({});
  length.max_tokens = 1;
  AnswerAssembler by_length(std::make_unique<PieceDetokenizer>(pieces), StopRules(length, {kEos}));
  EXPECT_EQ(by_length.Append(0), "a");
}

// The naive meaning: the shortest prefix of the text that ends with a stop string, and with a byte
// of token min_tokens or a later one, less the longest such string.
Answer Naive(const std::vector<std::string>& pieces, const request::StopParams& stop) {
  std::string text;
  size_t first = 0;  // the bytes of tokens before min_tokens
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (static_cast<int32_t>(i) + 1 < stop.min_tokens) first += pieces[i].size();
    text += pieces[i];
  }
  for (size_t end = first + 1; end <= text.size(); ++end) {
    const std::string prefix = text.substr(0, end);
    Answer answer;
    for (const std::string& s : stop.stop) {
      if (s.size() > end || s.size() <= answer.stop.size()) continue;
      if (prefix.compare(end - s.size(), s.size(), s) == 0) answer.stop = s;
    }
    if (answer.stop.empty()) continue;
    answer.stopped = true;
    answer.text =
        stop.include_stop_str_in_output ? prefix : prefix.substr(0, end - answer.stop.size());
    return answer;
  }
  return {text, "", false};
}

TEST(AnswerAssembler, AnySplitGivesTheNaiveResult) {
  auto random = NewSeededRandom(42);
  const auto word = [&](size_t size) {
    std::string s;
    for (size_t i = 0; i < size; ++i) s += static_cast<char>('a' + random->Below(2));
    return s;
  };
  int stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> strings;
    for (uint64_t i = random->Below(4); i > 0; --i) strings.push_back(word(1 + random->Below(8)));
    const int min = random->Below(2) == 0 ? 0 : static_cast<int>(random->Below(6));
    const request::StopParams stop = Stop(strings, random->Below(2) == 0, min);
    const std::string text = word(random->Below(40));
    for (int split = 0; split < 3; ++split) {
      std::vector<std::string> pieces;
      for (size_t at = 0; at < text.size();) {
        const size_t size = random->Below(split == 0 ? 2 : 9);  // empty pieces too
        pieces.push_back(text.substr(at, size));
        at += pieces.back().size();
      }
      const Answer expected = Naive(pieces, stop);
      stopped += split == 0 && expected.stopped;
      const Answer answer = Assemble(pieces, stop);
      ASSERT_EQ(answer.text, expected.text) << "seed 42 round " << round << " text " << text;
      ASSERT_EQ(answer.stop, expected.stop) << "seed 42 round " << round << " text " << text;
    }
  }
  EXPECT_GT(stopped, 5000);
  EXPECT_LT(stopped, 15000);
}

// The bound of docs/LIMITS.md, in steps: two for each byte of the answer, however many stop strings
// there are, and however long and alike they are.
TEST(AnswerAssembler, LookingForStopStringsTakesTwoStepsAByteAtTheBounds) {
  const std::string long_a(request::kStopStringBytesMax - 2, 'a');
  std::vector<std::string> alike, apart;
  for (size_t i = 0; i < request::kStopStringsMax; ++i) {
    const std::string ends = {static_cast<char>('A' + i % 26), static_cast<char>('0' + i / 26)};
    alike.push_back(long_a + ends);
    apart.push_back(ends + long_a);
  }
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += long_a + "aA";  // as far as the strings go together, and then another byte
    text += apart[static_cast<size_t>(i)].substr(0, 1000) + "!";
  }
  for (const std::vector<std::string>& strings : {alike, apart}) {
    ASSERT_EQ(request::Validate(Stop(strings), /*vocab_size=*/kEos + 1), absl::OkStatus());
    const StopRules rules(Stop(strings), {kEos});
    AnswerAssembler assembler(std::make_unique<PieceDetokenizer>(std::vector<std::string>{text}),
                              SharedValue<StopRules>(rules));
    std::string given = assembler.Append(0);
    given += assembler.Flush();
    EXPECT_TRUE(given == text) << given.size() << " bytes of " << text.size();
    EXPECT_LE(assembler.match_steps(), 2 * static_cast<int64_t>(text.size()));
    EXPECT_GT(assembler.match_steps(), static_cast<int64_t>(text.size()));
  }
}

}  // namespace
}  // namespace tandem::router
