// Goal: parts are cut into questions that fit into messages, and the answers' rows land where the
// part wants them.
#include "common/lending/question_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/runtime/random.h"

namespace tandem::lending {
namespace {

engine::RemotePart Part(uint64_t loan, int32_t rows, int32_t units, int64_t q_floats,
                        absl::Span<std::byte> answer, int32_t pieces) {
  engine::RemotePart part;
  part.lent = {.loan = LoanId(loan), .units = {.first = 0, .end = units}};
  part.num_rows = rows;
  part.q_floats = part.q_stride = q_floats;
  part.answer = answer;
  part.answer_pieces = pieces;
  return part;
}

TEST(QuestionPlanTest, PartsOfOneRowShareAQuestion) {
  std::vector<std::byte> answer(2400);
  std::vector<engine::RemotePart> parts(16, Part(1, 1, 16, 576, absl::MakeSpan(answer), 1));
  QuestionPlan plan;
  for (size_t i = 0; i < parts.size(); ++i) EXPECT_EQ(*plan.Add(parts, i), 1);
  ASSERT_EQ(plan.num_questions(), 1u);
  ASSERT_EQ(plan.question(0).size(), 16u);
  EXPECT_EQ(plan.question(0)[7].part, 7u);
  plan.Clear();
  EXPECT_EQ(plan.num_questions(), 0u);
}

TEST(QuestionPlanTest, EveryQuestionOfManyRowsIsWithinItsBoundsAndNoRowIsMissing) {
  std::vector<std::byte> answer(size_t{3} * 2000 * 2400);
  const std::vector<engine::RemotePart> parts = {Part(1, 2000, 20, 576, absl::MakeSpan(answer), 3)};
  QuestionPlan plan;
  const int32_t fragments = *plan.Add(parts, 0);
  int32_t row = 0, seen = 0;
  for (size_t i = 0; i < plan.num_questions(); ++i) {
    size_t query_bytes = 0, answer_bytes = 0;
    for (const QuestionPlan::Fragment& fragment : plan.question(i)) {
      const AttendPart said = DescribeFragment(parts[0], fragment);
      EXPECT_EQ(said.first_position, row);
      EXPECT_LE(said.num_rows * 20, kRowUnitsMax);
      query_bytes += size_t{said.q_floats} * said.num_rows * sizeof(float);
      answer_bytes += said.answer_bytes;
      row += fragment.num_rows;
      ++seen;
    }
    EXPECT_LE(query_bytes, kQueriesBytesMax);
    EXPECT_LE(answer_bytes, kAnswersBytesMax);
  }
  EXPECT_EQ(row, 2000);
  EXPECT_EQ(seen, fragments);
}

TEST(QuestionPlanTest, AnswersOfAllCutsTogetherAreTheWholeAnswer) {
  constexpr int32_t kRows = 700, kPieces = 5;
  constexpr size_t kRowBytes = 24;
  const auto random = NewSeededRandom(7);
  std::vector<std::byte> right(kRows * kPieces * kRowBytes), answer(right.size());
  for (std::byte& byte : right) byte = static_cast<std::byte>(random->Next());
  const std::vector<engine::RemotePart> parts = {
      Part(1, kRows, 9, 8, absl::MakeSpan(answer), kPieces)};
  QuestionPlan plan;
  ASSERT_GT(*plan.Add(parts, 0), 1);
  for (size_t i = 0; i < plan.num_questions(); ++i) {
    for (const QuestionPlan::Fragment& fragment : plan.question(i)) {
      std::vector<std::byte> rows;
      for (int32_t piece = 0; piece < kPieces; ++piece) {
        const auto first = right.begin() +
                           static_cast<ptrdiff_t>((piece * kRows + fragment.first_row) * kRowBytes);
        rows.insert(rows.end(), first,
                    first + static_cast<ptrdiff_t>(fragment.num_rows * kRowBytes));
      }
      PlaceAnswer(parts[0], fragment, rows);
    }
  }
  EXPECT_EQ(answer, right);
}

TEST(QuestionPlanTest, APartThatFitsNoMessageOrContradictsItselfIsRefused) {
  std::vector<std::byte> answer(kAnswersBytesMax + 1);
  const absl::Span<std::byte> all = absl::MakeSpan(answer);
  const std::vector<engine::RemotePart> parts = {
      Part(1, 1, 1, 8, all, 1),                                              // a row too long
      Part(1, 1, 1, static_cast<int64_t>(kQueriesBytesMax / 4 + 1), {}, 1),  // a query too long
      Part(1, 3, 1, 8, all.first(100), 1),                                   // 100 bytes in 3 rows
      Part(1, 0, 1, 8, {}, 1),
      Part(1, 1, 0, 8, {}, 1),
      Part(1, 1, 1, 0, {}, 1),
      Part(1, 1, 1, 8, all.first(kAnswersBytesMax), 1)};  // the longest
  QuestionPlan plan;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    EXPECT_EQ(plan.Add(parts, i).status().code(), absl::StatusCode::kInvalidArgument) << i;
  }
  EXPECT_EQ(plan.num_questions(), 0u);
  EXPECT_TRUE(plan.Add(parts, parts.size() - 1).ok());
}

}  // namespace
}  // namespace tandem::lending
