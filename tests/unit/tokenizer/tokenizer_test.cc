// Goal: what the golden test cannot show: streamed text equals whole text whatever the ids; BPE
// equals a naive implementation and stays near linear on megabyte words; scores give the merges
// they imply, ties included; invalid input is refused with what was wrong; one tokenizer serves
// many threads.
#include "common/model/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/model/tokenizer/streaming_detokenizer.h"
#include "common/model/tokenizer/utf8.h"
#include "tests/golden/tokenizer/golden_files.h"
#include "tests/testing/status_matchers.h"

namespace tandem::model {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

TokenizerSource TinySource(absl::string_view name) {
  TokenizerSource source;
  source.tokenizer_json = ReadGzip(GoldenPath(absl::StrCat("tiny_", name, ".json.gz")));
  return source;
}

std::unique_ptr<Tokenizer> Load(absl::string_view name) {
  auto tokenizer = Tokenizer::Create(TinySource(name));
  EXPECT_OK(tokenizer);
  return *std::move(tokenizer);
}

// A SentencePiece vocabulary over "ab" and the mark, whose bytes are complete.
TokenizerSource ScoredSource(std::vector<std::pair<std::string, float>> pieces) {
  TokenizerSource source;
  source.gguf_model = "llama";
  source.add_bos = false;
  source.add_space_prefix = false;
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kHex[] = "0123456789ABCDEF";
    source.tokens.push_back(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">");
    source.scores.push_back(0);
    source.token_types.push_back(6);
  }
  for (const auto& [text, score] : pieces) {
    source.tokens.push_back(text);
    source.scores.push_back(score);
    source.token_types.push_back(1);
  }
  return source;
}

std::vector<std::string> Pieces(const Tokenizer& tokenizer, absl::string_view text) {
  std::vector<std::string> pieces;
  for (const TokenId id : tokenizer.Encode(text)) pieces.push_back(tokenizer.TokenBytes(id));
  return pieces;
}

class Streaming : public ::testing::TestWithParam<const char*> {};

TEST_P(Streaming, PiecesAreWholeCharactersAndJoinToDecode) {
  const auto tokenizer = Load(GetParam());
  constexpr uint32_t kSeed = 11;
  std::mt19937 random(kSeed);
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  for (int round = 0; round < 3000; ++round) {
    std::vector<TokenId> ids(random() % 20);
    // Early ids, where bytes and control tokens are, half of the time; some out of range.
    const int32_t limit = round % 2 ? 300 : tokenizer->vocab_size() + 3;
    for (TokenId& id : ids) id = static_cast<TokenId>(random() % limit) - (round % 7 == 0);
    const bool skip = random() % 2;
    StreamingDetokenizer stream(tokenizer.get(), {.skip_special_tokens = skip});
    std::string joined;
    for (const TokenId id : ids) {
      const std::string piece = stream.Append(id);
      ASSERT_TRUE(tokenizer_internal::IsValidUtf8(piece));
      joined += piece;
    }
    joined += stream.Flush();
    ASSERT_EQ(joined, tokenizer->Decode(ids, skip)) << "round " << round;
    ASSERT_EQ(stream.Flush(), "");
  }
}

// For byte-level vocabularies the text is, by definition, the tokens' bytes read as UTF-8.
TEST_P(Streaming, ByteLevelTextIsTheBytesOfTheTokens) {
  const auto tokenizer = Load(GetParam());
  if (!tokenizer->FindToken("Ġ").has_value()) GTEST_SKIP() << "not byte-level";
  std::mt19937 random(13);
  for (int round = 0; round < 2000; ++round) {
    std::vector<TokenId> ids(random() % 12);
    std::string bytes, expected;
    for (TokenId& id : ids) {
      id = static_cast<TokenId>(random() % 400);
      bytes += tokenizer->TokenBytes(id);
    }
    tokenizer_internal::AppendLossyUtf8(bytes, &expected);
    ASSERT_EQ(tokenizer->Decode(ids, false), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Streaming,
                         ::testing::Values("gpt2", "llama3", "llama2", "metaspace"),
                         [](const auto& info) { return std::string(info.param); });

// Decoders of SentencePiece vocabularies drop the first space of a text, and no other.
TEST(Streaming, TokensThatContinueATextKeepTheirSpace) {
  for (const char* name : {"gpt2", "llama2", "metaspace"}) {
    const auto tokenizer = Load(name);
    const auto all = tokenizer->Encode("the cat and", {.add_special_tokens = false});
    StreamingDetokenizer stream(tokenizer.get(), {.continues_text = true});
    for (size_t cut = 1; cut <= all.size(); ++cut) {
      const absl::Span<const TokenId> prompt = absl::MakeConstSpan(all).subspan(0, cut);
      std::string text = tokenizer->Decode(prompt, true);
      for (size_t i = cut; i < all.size(); ++i) stream.AppendTo(all[i], &text);
      text += stream.Flush();  // and starts over in the same way
      EXPECT_EQ(text, tokenizer->Decode(all, true)) << name << " " << cut;
    }
  }
}

TEST(Tokenizer, TheTextOfATokenHasItsSpace) {
  const auto llama = Load("llama2");
  EXPECT_EQ(llama->TokenText(*llama->FindToken("▁")), " ");
  EXPECT_EQ(llama->TokenText(*llama->FindToken("the")), "the");
  EXPECT_EQ(llama->TokenText(*llama->FindToken("<0xC3>")), "\uFFFD");
  EXPECT_EQ(llama->TokenText(*llama->FindToken("<s>")), "<s>");
  EXPECT_EQ(llama->TokenText(llama->vocab_size()), "");
  const auto metaspace = Load("metaspace");
  EXPECT_EQ(metaspace->TokenText(*metaspace->FindToken("▁the")), " the");
}

TEST(Streaming, ACharacterInPartsComesOutOnceWhole) {
  const auto tokenizer = Load("gpt2");
  StreamingDetokenizer stream(tokenizer.get());
  const std::string emoji = "\xF0\x9F\xAB\xA0";
  std::vector<std::string> pieces;
  for (const char byte : emoji) {
    for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
      if (tokenizer->TokenBytes(id) == std::string(1, byte)) {
        pieces.push_back(stream.Append(id));
        break;
      }
    }
  }
  EXPECT_THAT(pieces, ::testing::ElementsAre("", "", "", emoji));
  EXPECT_EQ(stream.Flush(), "");
}

// Text that encodes and decodes comes back, whatever it is, where the vocabulary has all bytes.
TEST(Tokenizer, TextSurvivesTheRoundTrip) {
  const auto tokenizer = Load("gpt2");
  for (const std::string& line : ReadCorpus()) {
    std::string text;
    tokenizer_internal::AppendLossyUtf8(line, &text);
    ASSERT_EQ(tokenizer->Decode(tokenizer->Encode(line), false), text);
  }
}

TEST(Tokenizer, SpecialTextIsTextUnlessParsed) {
  const auto tokenizer = Load("gpt2");
  const TokenId end = *tokenizer->FindToken("<|im_end|>");
  EXPECT_TRUE(tokenizer->IsSpecial(end));
  EXPECT_THAT(tokenizer->Encode("a<|im_end|>"), ::testing::Contains(end));
  const auto plain = tokenizer->Encode("a<|im_end|>", {.parse_special = false});
  EXPECT_THAT(plain, ::testing::Not(::testing::Contains(end)));
  EXPECT_EQ(tokenizer->Decode(plain, true), "a<|im_end|>");
  EXPECT_EQ(tokenizer->Decode({end}, true), "");
  EXPECT_EQ(tokenizer->Decode({end}, false), "<|im_end|>");
}

TEST(Tokenizer, AddsBosAndEosOnlyWhenAsked) {
  const auto tokenizer = Load("llama2");
  const auto ids = tokenizer->Encode("hi");
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(ids.back(), 2);
  EXPECT_EQ(tokenizer->Encode("", {.add_special_tokens = false}).size(), 0u);
  EXPECT_THAT(tokenizer->Encode(""), ::testing::ElementsAre(1, 2));
}

// What goes around a text by tokenizer_config.json. "llama2" has a template for both, "gpt2" none.
TEST(Tokenizer, TheConfigurationSaysWhatGoesAroundAText) {
  using Ids = std::vector<TokenId>;
  const auto around = [](absl::string_view name, const std::string& config) {
    TokenizerSource source = TinySource(name);
    source.tokenizer_config_json = config;
    const auto tokenizer = Tokenizer::Create(source);
    EXPECT_OK(tokenizer) << config;
    if (!tokenizer.ok()) return std::pair<Ids, Ids>();
    const auto prefix = (*tokenizer)->prefix_ids(), suffix = (*tokenizer)->suffix_ids();
    return std::pair(Ids(prefix.begin(), prefix.end()), Ids(suffix.begin(), suffix.end()));
  };
  const auto expect = [](Ids prefix, Ids suffix) { return std::pair(prefix, suffix); };
  const std::string tokens = R"(,"bos_token":"<s>","eos_token":{"content":"</s>"}})";
  for (const char* of :
       {"LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "CodeLlamaTokenizerFast"}) {
    const std::string head = absl::StrCat(R"({"tokenizer_class":")", of, "\"");
    EXPECT_EQ(around("llama2", head + R"(,"add_bos_token":false)" + tokens), expect({}, {}));
    EXPECT_EQ(around("llama2", head + R"(,"add_bos_token":true)" + tokens), expect({1}, {}));
    EXPECT_EQ(around("llama2", head + R"(,"add_eos_token":true)" + tokens), expect({1}, {2}));
    EXPECT_EQ(around("llama2", head + tokens), expect({1}, {2})) << "the template's";
    const std::string ends = R"(,"bos_token":"<|im_start|>","eos_token":"<|im_end|>"})";
    EXPECT_EQ(around("gpt2", head + R"(,"add_bos_token":true)" + ends), expect({1}, {}));
    EXPECT_EQ(around("gpt2", head + R"(,"add_bos_token":false)" + ends), expect({}, {}));
    EXPECT_EQ(around("gpt2", head + ends), expect({1}, {}));
    EXPECT_EQ(around("gpt2", head + R"(,"bos_token":null})"), expect({}, {}));
  }
  // The usual token where none is named.
  EXPECT_EQ(around("llama2", R"({"tokenizer_class":"LlamaTokenizer","add_eos_token":false})"),
            expect({1}, {}));
  // Other classes take the template.
  for (const char* of : {"PreTrainedTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer"}) {
    const std::string head =
        absl::StrCat(R"({"add_bos_token":false,"tokenizer_class":")", of, "\"");
    EXPECT_EQ(around("llama2", head + tokens), expect({1}, {2}));
  }

  const auto error = [](const std::string& members) {
    TokenizerSource source = TinySource("llama2");
    source.tokenizer_config_json = R"({"tokenizer_class":"LlamaTokenizer")" + members + "}";
    return Tokenizer::Create(source).status();
  };
  EXPECT_THAT(error(R"(,"add_bos_token":true,"bos_token":"<none>")"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("add_bos_token is true, so bos_token must be a token")));
  EXPECT_THAT(error(R"(,"add_eos_token":true,"eos_token":null)"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("eos_token must be a token")));
  EXPECT_THAT(error(R"(,"add_bos_token":1)"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("add_bos_token: expected true or false")));
}

TEST(Scores, BetterScoresMergeFirst) {
  ASSERT_OK_AND_ASSIGN(
      const auto tokenizer,
      Tokenizer::Create(ScoredSource(
          {{"a", -9}, {"b", -9.5}, {"\u2581", -8}, {"ab", -2}, {"ba", -1}, {"bab", -3}})));
  // "ba" goes before both "ab"s.
  EXPECT_THAT(Pieces(*tokenizer, "abab"), ::testing::ElementsAre("a", "bab"));
  EXPECT_THAT(Pieces(*tokenizer, "bab ab"), ::testing::ElementsAre("bab", " ", "ab"));
}

// Merges of one score follow the longer left side. The vocabularies differ only in whether a tie
// exists anywhere, which decides how merges are looked up.
TEST(Scores, TiesGiveTheSameMergesAsWrittenOut) {
  std::vector<std::pair<std::string, float>> pieces = {
      {"a", -20},  {"b", -21}, {"c", -22},  {"\u2581", -23}, {"ab", -1},  {"bc", -2},
      {"abc", -3}, {"ca", -4}, {"cab", -5}, {"aa", -6},      {"aab", -7}, {"\u2581a", -8}};
  ASSERT_OK_AND_ASSIGN(const auto by_score, Tokenizer::Create(ScoredSource(pieces)));
  pieces.emplace_back("zz", -1);  // never met; shares a score
  ASSERT_OK_AND_ASSIGN(const auto by_pair, Tokenizer::Create(ScoredSource(pieces)));
  std::mt19937 random(17);
  for (int round = 0; round < 5000; ++round) {
    std::string text(random() % 90, ' ');
    for (char& c : text) c = "abc "[random() % 4];
    ASSERT_EQ(by_score->Encode(text), by_pair->Encode(text)) << text;
  }
}

// The slowest word of the benchmark takes about half a second a megabyte; a quadratic algorithm
// takes minutes.
TEST(Tokenizer, MegabyteWordsAreNotQuadratic) {
  for (const char* name : {"gpt2", "llama3", "llama2", "split", "qwen2"}) {
    const auto tokenizer = Load(name);
    // The last two: marks that normal forms put into another order, and a character made of such.
    for (const std::string unit :
         {"a", " ", "\n", "ab", "1", "中", "=", "'", "\xff", "\u0301\u0316", "\u0f73"}) {
      std::string text;
      while (text.size() < (1 << 20)) text += unit;
      const absl::Time start = absl::Now();
      const auto ids = tokenizer->Encode(text);
      EXPECT_LT(absl::Now() - start, absl::Seconds(20)) << name << " " << unit;
      EXPECT_FALSE(ids.empty());
    }
  }
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  const auto tokenizer = Load("qwen2");
  const std::vector<std::string> lines = ReadCorpus();
  constexpr size_t kThreads = 20, kLines = 600;  // more threads than kept caches
  const auto reference = Load("qwen2");
  std::vector<std::vector<TokenId>> expected;
  for (size_t i = 0; i < kLines; ++i) expected.push_back(reference->Encode(lines[i]));
  std::vector<int> differences(kThreads, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < kLines; ++i) {
        const size_t line = (i * 7 + t * 31) % kLines;
        differences[t] += tokenizer->Encode(lines[line]) != expected[line];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(differences, ::testing::Each(0));
}

// Replaces `from` by `to` in a sound tokenizer.json and expects the error.
void ExpectRefused(absl::string_view from, absl::string_view to, absl::StatusCode code,
                   absl::string_view message) {
  TokenizerSource source = TinySource("gpt2");
  const std::string before = source.tokenizer_json;
  source.tokenizer_json = absl::StrReplaceAll(before, {{from, to}});
  ASSERT_NE(source.tokenizer_json, before) << from;
  EXPECT_THAT(Tokenizer::Create(source), StatusIs(code, HasSubstr(std::string(message))));
}

TEST(Refused, JsonThatIsWrongOrUnsupported) {
  const auto kUnimplemented = absl::StatusCode::kUnimplemented;
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectRefused(R"("type":"BPE")", R"("type":"Unigram")", kUnimplemented, "Unigram");
  ExpectRefused(R"("normalizer":null)", R"("normalizer":{"type":"Lowercase"})", kUnimplemented,
                "normalizer \"Lowercase\"");
  ExpectRefused(R"("pre_tokenizer":{"type":"ByteLevel")",
                R"("pre_tokenizer":{"type":"Punctuation")", kUnimplemented,
                "pre_tokenizer \"Punctuation\"");
  ExpectRefused(R"("decoder":{"type":"ByteLevel")", R"("decoder":{"type":"WordPiece")",
                kUnimplemented, "decoder");
  ExpectRefused(R"("merges":[)", R"("merges":[["qqq","a"],)", kInvalid, "qqq");
  ExpectRefused(R"("merges":[)", R"("merges":[7,)", kInvalid, "merge 0");
  ExpectRefused(R"("vocab":{)", R"("vocab":{"zzzz":-1,)", kInvalid, "model.vocab zzzz");
  ExpectRefused(R"("vocab":{)", R"("vocab":{"zzzz":5,)", kInvalid, "id 5 has two tokens");
  ExpectRefused(R"("unk_token":null)", R"("unk_token":"<nope>")", kInvalid, "<nope>");
  ExpectRefused(R"("dropout":null)", R"("dropout":0.1)", kUnimplemented, "dropout");
}

// Values of this depth would overflow the stack where they are copied.
TEST(Refused, JsonThatNestsTooDeep) {
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']');
  ExpectRefused(R"("normalizer":null)",
                absl::StrCat(R"("normalizer":{"type":"Sequence","normalizers":)", deep, "}"),
                absl::StatusCode::kInvalidArgument, "tokenizer.json: nests deeper than 64 levels");
  TokenizerSource source = TinySource("gpt2");
  source.tokenizer_config_json = absl::StrCat(R"({"eos_token":)", deep, "}");
  EXPECT_THAT(Tokenizer::Create(source),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tokenizer_config.json: nests deeper than 64 levels")));
}

TEST(Refused, GgufThatIsWrongOrUnsupported) {
  TokenizerSource source = ScoredSource({{"a", -1}});
  source.gguf_model = "rwkv";
  EXPECT_THAT(Tokenizer::Create(source),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("rwkv")));
  source.gguf_model = "gpt2";
  source.gguf_pre = "tekken";
  EXPECT_THAT(Tokenizer::Create(source),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("tekken")));
  source.gguf_pre = "gpt2";
  source.merges = {"a q"};
  EXPECT_THAT(Tokenizer::Create(source),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("merge 0")));
  source = ScoredSource({{"a", -1}});
  source.scores.pop_back();
  EXPECT_THAT(Tokenizer::Create(source),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("scores has 256")));
  source = ScoredSource({{"a", -1}});
  source.eos_token_id = 9999;
  EXPECT_THAT(Tokenizer::Create(source),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("eos_token_id is 9999")));
  EXPECT_THAT(Tokenizer::Create(TokenizerSource()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected tokenizer.json")));
}

}  // namespace
}  // namespace tandem::model
