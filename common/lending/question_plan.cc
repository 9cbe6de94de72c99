#include "common/lending/question_plan.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem::lending {

absl::StatusOr<size_t> AnswerRowBytes(const engine::RemotePart& part) {
  if (part.num_rows <= 0 || part.answer_pieces <= 0 || part.q_floats <= 0 ||
      part.q_stride < part.q_floats || part.lent.units.size() <= 0 ||
      part.answer.size() % (static_cast<size_t>(part.num_rows) * part.answer_pieces) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("loan ", part.lent.loan.value(), ": ", part.num_rows, " rows of ",
                     part.q_floats, " floats, ", part.lent.units.size(), " units, an answer of ",
                     part.answer.size(), " bytes in ", part.answer_pieces, " pieces"));
  }
  return part.answer.size() / (static_cast<size_t>(part.num_rows) * part.answer_pieces);
}

void QuestionPlan::Clear() {
  fragments_.clear();
  questions_.clear();
}

absl::Span<const QuestionPlan::Fragment> QuestionPlan::question(size_t index) const {
  TANDEM_CHECK(index < questions_.size());
  return absl::MakeConstSpan(fragments_)
      .subspan(questions_[index].first_fragment, questions_[index].num_fragments);
}

void QuestionPlan::Append(const Fragment& fragment, size_t query_bytes, size_t answer_bytes) {
  if (questions_.empty() || questions_.back().num_fragments == kEntriesMax ||
      questions_.back().query_bytes + query_bytes > kQueriesBytesMax ||
      questions_.back().answer_bytes + answer_bytes > kAnswersBytesMax) {
    questions_.push_back({.first_fragment = fragments_.size(),
                          .num_fragments = 0,
                          .query_bytes = 0,
                          .answer_bytes = 0});
  }
  fragments_.push_back(fragment);
  Question& question = questions_.back();
  ++question.num_fragments;
  question.query_bytes += query_bytes;
  question.answer_bytes += answer_bytes;
}

absl::StatusOr<int32_t> QuestionPlan::Add(absl::Span<const engine::RemotePart> parts,
                                          size_t index) {
  const engine::RemotePart& part = parts[index];
  ASSIGN_OR_RETURN(const size_t piece_row_bytes, AnswerRowBytes(part));
  const size_t query_bytes = static_cast<size_t>(part.q_floats) * sizeof(float);
  const size_t answer_bytes = piece_row_bytes * part.answer_pieces;
  if (query_bytes > kQueriesBytesMax || answer_bytes > kAnswersBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("loan ", part.lent.loan.value(), ": one row has ", query_bytes,
                     " bytes of queries and ", answer_bytes, " of answers, expected at most ",
                     kQueriesBytesMax, " and ", kAnswersBytesMax));
  }
  size_t rows_max = kQueriesBytesMax / query_bytes;
  if (answer_bytes > 0) rows_max = std::min(rows_max, kAnswersBytesMax / answer_bytes);
  rows_max = std::min(
      rows_max, static_cast<size_t>(std::max<int64_t>(1, kRowUnitsMax / part.lent.units.size())));
  int32_t fragments = 0;
  for (int32_t row = 0; row < part.num_rows;) {
    const auto rows =
        static_cast<int32_t>(std::min(rows_max, static_cast<size_t>(part.num_rows - row)));
    Append({.part = index, .first_row = row, .num_rows = rows}, rows * query_bytes,
           rows * answer_bytes);
    row += rows;
    ++fragments;
  }
  return fragments;
}

void PlaceAnswer(const engine::RemotePart& part, const QuestionPlan::Fragment& fragment,
                 absl::Span<const std::byte> answer) {
  const size_t row_bytes =
      part.answer.size() / (static_cast<size_t>(part.num_rows) * part.answer_pieces);
  const size_t bytes = row_bytes * fragment.num_rows;
  TANDEM_CHECK(answer.size() == bytes * part.answer_pieces);
  if (bytes == 0) return;
  for (int32_t piece = 0; piece < part.answer_pieces; ++piece) {
    const size_t first_row = static_cast<size_t>(piece) * part.num_rows + fragment.first_row;
    std::memcpy(part.answer.data() + first_row * row_bytes, answer.data() + piece * bytes, bytes);
  }
}

AttendPart DescribeFragment(const engine::RemotePart& part,
                            const QuestionPlan::Fragment& fragment) {
  const size_t row_bytes = part.answer.size() / static_cast<size_t>(part.num_rows);
  return {.loan = part.lent.loan.value(),
          .first_position = part.first_position + fragment.first_row,
          .layer = part.layer,
          .first_unit = part.lent.units.first,
          .end_unit = part.lent.units.end,
          .num_rows = fragment.num_rows,
          .q_floats = static_cast<uint32_t>(part.q_floats),
          .answer_bytes = static_cast<uint32_t>(row_bytes * fragment.num_rows)};
}

}  // namespace tandem::lending
