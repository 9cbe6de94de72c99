// Goal: ordering long runs of combining marks changes no normal form, whatever the marks, also of
// characters that decompose into marks; text without such runs stays as it is.
#include "common/model/tokenizer/mark_order.h"

#include <gmock/gmock.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include <random>
#include <string>
#include <vector>

#include "common/model/tokenizer/normalizer.h"
#include "tests/testing/status_matchers.h"

namespace tandem::model::tokenizer_internal {
namespace {

// ICU's own normal form.
std::string FormOf(Normalizer::Form form, const std::string& text) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer =
      form == Normalizer::Form::kNfc    ? icu::Normalizer2::getNFCInstance(error)
      : form == Normalizer::Form::kNfd  ? icu::Normalizer2::getNFDInstance(error)
      : form == Normalizer::Form::kNfkc ? icu::Normalizer2::getNFKCInstance(error)
                                        : icu::Normalizer2::getNFKDInstance(error);
  std::string out;
  icu::StringByteSink<std::string> sink(&out);
  normalizer->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())),
                            sink, nullptr, error);
  EXPECT_TRUE(U_SUCCESS(error));
  return out;
}

TEST(MarkOrder, ChangesNoNormalForm) {
  // Marks of many classes, characters that are or end in some, and others.
  const std::vector<std::string> pieces = {
      "\u0301", "\u0316", "\u0327", "\u0334",     "\u0344",    "\u0345", "\u05b0",
      "\u064b", "\u0f71", "\u0f73", "\u0f81",     "\u302a",    "\u3099", "\u1e9b",
      "\u00e9", "\u1e69", "\uac00", "\u11a8",     "\u09be",    "\u09c7", "\ufb01",
      "\u037a", "a",      "\u4e2d", "\U0001d15e", "\U0001d165"};
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  int ordered = 0;
  for (int round = 0; round < 300; ++round) {
    // Mostly marks: few others make long runs.
    std::string text;
    const size_t kinds = 1 + random() % pieces.size();
    const unsigned others = 1 + random() % 200;
    for (int i = 0; i < 1000; ++i)
      text += pieces[random() % others == 0 ? random() % pieces.size() : random() % kinds % 13];
    for (const auto form : {Normalizer::Form::kNfc, Normalizer::Form::kNfd, Normalizer::Form::kNfkc,
                            Normalizer::Form::kNfkd}) {
      const bool compatible = form == Normalizer::Form::kNfkc || form == Normalizer::Form::kNfkd;
      std::string in_order;
      ordered += OrderLongMarkRuns(text, compatible, &in_order);
      Normalizer normalizer;
      ASSERT_OK(normalizer.AddForm(form));
      std::string first, second;
      ASSERT_EQ(normalizer.Apply(text, &first, &second), FormOf(form, text)) << round;
    }
  }
  EXPECT_GT(ordered, 100);
}

TEST(MarkOrder, TextWithoutLongRunsStays) {
  std::string out;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "e\u0301\u0316 中文 ";
  EXPECT_FALSE(OrderLongMarkRuns(text, false, &out));
  EXPECT_FALSE(OrderLongMarkRuns("", false, &out));
  EXPECT_FALSE(OrderLongMarkRuns(std::string(1000, 'a'), false, &out));
  std::string run = "a";
  for (int i = 1; i < kLongMarkRun; ++i) run += "\u0301";
  EXPECT_FALSE(OrderLongMarkRuns(run, false, &out));
  EXPECT_TRUE(OrderLongMarkRuns(run + "\u0316", false, &out));
}

}  // namespace
}  // namespace tandem::model::tokenizer_internal
