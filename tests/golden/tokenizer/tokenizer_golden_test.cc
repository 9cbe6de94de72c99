// Goal: Encode and Decode give exactly what Hugging Face's `tokenizers` gives, on more than 20,000
// varied lines, for small vocabularies of every family and for the real models' vocabularies, where
// their files are in the model cache. The goldens are made by make_corpus.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "absl/strings/escaping.h"
#include "common/model/tokenizer/streaming_detokenizer.h"
#include "common/model/tokenizer/tokenizer.h"
#include "tests/golden/tokenizer/golden_files.h"
#include "tests/testing/status_matchers.h"

namespace tandem::model {
namespace {

const std::vector<std::string>& Corpus() {
  static const auto& lines = *new std::vector<std::string>(ReadCorpus());
  return lines;
}

// The crc32 over each line's number of ids and its ids, as make_corpus.py computes it.
uint32_t HashLines(const Tokenizer& tokenizer, size_t begin, size_t end,
                   Tokenizer::EncodeOptions options) {
  uLong crc = crc32(0, nullptr, 0);
  for (size_t i = begin; i < end; ++i) {
    const std::vector<TokenId> ids = tokenizer.Encode(Corpus()[i], options);
    const auto count = static_cast<uint32_t>(ids.size());
    crc = crc32(crc, reinterpret_cast<const Bytef*>(&count), sizeof(count));
    crc = crc32(crc, reinterpret_cast<const Bytef*>(ids.data()),
                static_cast<uInt>(ids.size() * sizeof(TokenId)));
  }
  return static_cast<uint32_t>(crc);
}

uint32_t HashText(const std::string& text) {
  return static_cast<uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
}

std::vector<TokenId> ReadIds(std::istringstream& in) {
  std::vector<TokenId> ids;
  for (TokenId id = 0; in >> id;) ids.push_back(id);
  return ids;
}

// Checks every line of a golden file, printing the first few differences of each kind.
void CheckGolden(const Tokenizer& tokenizer, const std::string& golden_name) {
  std::istringstream golden(ReadGzip(GoldenPath(golden_name)));
  size_t lines_checked = 0, decodings_checked = 0;
  for (std::string row; std::getline(golden, row);) {
    std::istringstream in(row);
    std::string kind;
    in >> kind;
    if (kind == "hash") {
      size_t begin = 0;
      uint32_t full = 0, plain = 0;
      in >> begin >> full >> plain;
      const size_t end = std::min(begin + 100, Corpus().size());
      EXPECT_EQ(HashLines(tokenizer, begin, end, {}), full) << "lines from " << begin;
      EXPECT_EQ(
          HashLines(tokenizer, begin, end, {.add_special_tokens = false, .parse_special = false}),
          plain)
          << "without special tokens, lines from " << begin;
      lines_checked += end - begin;
    } else if (kind == "line") {
      size_t i = 0;
      in >> i;
      EXPECT_EQ(tokenizer.Encode(Corpus()[i]), ReadIds(in))
          << "line " << i << ": " << absl::CHexEscape(Corpus()[i]);
    } else {
      ASSERT_EQ(kind, "decode");
      uint32_t kept = 0, skipped = 0;
      in >> kept >> skipped;
      const std::vector<TokenId> ids = ReadIds(in);
      EXPECT_EQ(HashText(tokenizer.Decode(ids, false)), kept)
          << row << "\n"
          << absl::CHexEscape(tokenizer.Decode(ids, false));
      EXPECT_EQ(HashText(tokenizer.Decode(ids, true)), skipped) << row;
      ++decodings_checked;
    }
    if (::testing::Test::HasFailure() && lines_checked > 2000) FAIL() << "giving up";
  }
  EXPECT_GE(lines_checked, 20000u);
  EXPECT_GE(decodings_checked, 400u);
}

class TinyVocabulary : public ::testing::TestWithParam<const char*> {};

TEST_P(TinyVocabulary, EqualsHuggingFace) {
  TokenizerSource source;
  source.tokenizer_json = ReadGzip(GoldenPath(absl::StrCat("tiny_", GetParam(), ".json.gz")));
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, Tokenizer::Create(source));
  CheckGolden(*tokenizer, absl::StrCat("tiny_", GetParam(), ".golden.gz"));
}

INSTANTIATE_TEST_SUITE_P(Families, TinyVocabulary,
                         ::testing::Values("gpt2", "llama3", "qwen2", "split", "llama2",
                                           "metaspace"),
                         [](const auto& info) { return std::string(info.param); });

// A real model's tokenizer; nullptr when its file is not in the model cache.
std::unique_ptr<Tokenizer> LoadModel(absl::string_view file) {
  const std::optional<std::string> path = FindModel(file);
  if (!path.has_value()) return nullptr;
  auto checkpoint = Checkpoint::Open(*path);
  EXPECT_OK(checkpoint);
  if (!checkpoint.ok()) return nullptr;
  auto tokenizer = Tokenizer::Create((*checkpoint)->tokenizer());
  EXPECT_OK(tokenizer);
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(RealVocabulary, SmolLm2EqualsHuggingFace) {
  const auto tokenizer = LoadModel("SmolLM2-135M-Instruct.Q4_1.gguf");
  if (tokenizer == nullptr) GTEST_SKIP() << "not in the model cache";
  CheckGolden(*tokenizer, "smollm2.golden.gz");
}

TEST(RealVocabulary, Gemma3EqualsHuggingFace) {
  const auto tokenizer = LoadModel("gemma-3-270m-q4_k_m.gguf");
  if (tokenizer == nullptr) GTEST_SKIP() << "not in the model cache";
  CheckGolden(*tokenizer, "gemma3.golden.gz");
}

TEST(RealVocabulary, SmolLm2ChatPrompt) {
  const auto tokenizer = LoadModel("SmolLM2-135M-Instruct.Q4_1.gguf");
  if (tokenizer == nullptr) GTEST_SKIP() << "not in the model cache";
  const std::vector<TokenId> ids = tokenizer->Encode(
      "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
      "<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
      "<|im_start|>assistant\n");
  EXPECT_THAT(
      ids, ::testing::ElementsAre(1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308,
                                  34519, 28, 7018, 411, 407, 19712, 8182, 2, 198, 1, 4093, 198,
                                  1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198));
  EXPECT_EQ(tokenizer->FindToken("<|im_end|>"), 2);
  EXPECT_TRUE(tokenizer->IsSpecial(2));
  EXPECT_EQ(tokenizer->vocab_size(), 49152);
}

}  // namespace
}  // namespace tandem::model
