// How one layer's parts for one creditor are cut into questions: a question is one message, and its
// answer is another. A part with many rows is cut into fragments of consecutive rows, because a
// message holds kQueriesBytesMax and a creditor computes kRowUnitsMax at a time.
// Thread safety: none; plain state of the engine thread. Owner: CreditorLinks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/remote_attention.h"
#include "common/lending/lending_wire.h"

namespace tandem::lending {

class QuestionPlan {
 public:
  // Rows [first_row, first_row + num_rows) of parts[part].
  struct Fragment {
    size_t part;
    int32_t first_row;
    int32_t num_rows;
  };

  // Forgets everything, and keeps the memory for the next layer.
  void Clear();
  // Adds all rows of parts[part], and returns in how many fragments. Errors: kInvalidArgument when
  // one row is too long for a message, or the part's sizes do not fit together; nothing is added.
  absl::StatusOr<int32_t> Add(absl::Span<const engine::RemotePart> parts, size_t part);

  size_t num_questions() const { return questions_.size(); }
  absl::Span<const Fragment> question(size_t index) const;

 private:
  struct Question {
    size_t first_fragment;
    size_t num_fragments;
    size_t query_bytes;
    size_t answer_bytes;
  };
  void Append(const Fragment& fragment, size_t query_bytes, size_t answer_bytes);

  // Bound: the rows of one step, each.
  std::vector<Fragment> fragments_;
  std::vector<Question> questions_;
};

// Bytes of one row in one of the answer's pieces. Errors: kInvalidArgument when the part's rows and
// pieces do not divide its answer.
absl::StatusOr<size_t> AnswerRowBytes(const engine::RemotePart& part);
// Writes a fragment's answer, [answer_pieces][fragment.num_rows][row], into its rows of the part's.
// REQUIRES: the part was added to a plan, and `answer` has the fragment's size.
void PlaceAnswer(const engine::RemotePart& part, const QuestionPlan::Fragment& fragment,
                 absl::Span<const std::byte> answer);
// What a question says about a fragment.
AttendPart DescribeFragment(const engine::RemotePart& part, const QuestionPlan::Fragment& fragment);

}  // namespace tandem::lending
