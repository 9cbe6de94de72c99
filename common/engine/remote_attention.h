// Attention over KV that other nodes hold. A sequence may have lent the KV of its oldest tokens to
// other nodes; its rows attend to those tokens there. Only queries and partial results travel.
//
//   debtor's engine                         creditor
//   Ask(parts) ── queries of one layer ───▶ PartialAttention::Compute over the lent blocks
//   (attends to its own blocks)
//   Collect(parts) ◀── records ────────────
//   merges all records in index order
//
// A unit is what can be lent: unit_tokens (EngineSpec) tokens, at absolute places of the sequence;
// for model engines one attention partition. Partials over units are the same bits wherever they
// are computed (kernels/api/attention_partials.h), so the sequence's tokens do not change.
// Thread safety: RemoteAttention: the engine thread. PartialAttention: one thread at a time, beside
// the engine thread's Step. Owner: the node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace tandem::engine {

// Units [first, end) of a sequence.
struct UnitSpan {
  int32_t first = 0;
  int32_t end = 0;
  int32_t size() const { return end - first; }
  friend bool operator==(const UnitSpan&, const UnitSpan&) = default;
};

// Units of one sequence that lie with one creditor, under one loan of this node.
struct LentUnits {
  LoanId loan;
  UnitSpan units;
};

// What one sequence has lent.
struct RemoteKv {
  // They ascend without a gap from unit 0.
  std::vector<LentUnits> lent;
  // Set by Step when a creditor did not answer: the slice's rows are then wrong, and its sampled
  // token and scores are to be ignored. The step's other slices are unaffected.
  absl::Status failure;
  // With it: the loans about which there is no answer, and those about which there was none yet
  // (kDeadlineExceeded). Bound of both: the loans of `lent`.
  std::vector<LoanId> failed, late;

  // For engines. A step begins; an answer was awaited.
  void Begin() {
    failure = absl::OkStatus();
    failed.clear();
    late.clear();
  }
  void Take(const LentUnits& asked, const absl::Status& status) {
    if (status.ok()) return;
    failure.Update(status);
    (absl::IsDeadlineExceeded(status) ? late : failed).push_back(asked.loan);
  }
};

// One loan's share of one layer for consecutive rows of one sequence.
struct RemotePart {
  LentUnits lent;
  int32_t layer = 0;
  int32_t num_rows = 0;
  int64_t first_position = 0;  // of the first row
  // The rows' queries, in the form that the engine's PartialAttention takes: [num_rows][q_stride],
  // of which q_floats are used. They do not change until Collect.
  const float* q = nullptr;
  int64_t q_stride = 0;
  int64_t q_floats = 0;
  // Where the answer goes: AnswerBytes of the engine's PartialAttention. Written between Ask and
  // the end of Collect. It is laid out as [answer_pieces][num_rows][bytes of a row], so that many
  // rows can be asked about in several messages.
  absl::Span<std::byte> answer;
  int32_t answer_pieces = 1;
  // Set by Collect: OK, or why there is no answer. kDeadlineExceeded: there is none yet; the same
  // question may be asked again in a later step.
  absl::Status status;
};

class RemoteAttention {
 public:
  virtual ~RemoteAttention() = default;
  // Sends one layer's queries. Does not wait. `parts` stay until Collect, which must follow before
  // the next Ask.
  virtual void Ask(absl::Span<RemotePart> parts) = 0;
  // Waits until each part of the last Ask has its answer or has failed, and sets each status. Waits
  // no longer than the implementation's patience.
  virtual void Collect(absl::Span<RemotePart> parts) = 0;
};

// A question about blocks that this node has lent.
struct PartialQuery {
  int32_t layer = 0;
  UnitSpan units;
  // The units' blocks: block_table[0] holds the first token of units.first. REQUIRES: as many as
  // the units have.
  absl::Span<const BlockId> blocks;
  int32_t num_rows = 0;
  int64_t first_position = 0;
  // [num_rows][q_floats()], without gaps.
  absl::Span<const float> q;
};

// Computes a creditor's answers on blocks of its own arena. The blocks are sealed and do not
// change.
class PartialAttention {
 public:
  virtual ~PartialAttention() = default;
  // Of one row's query in one layer.
  virtual int64_t q_floats() const = 0;
  // Of the answer to a question about `units` for `num_rows` rows of `layer`. Equal on all nodes of
  // a numerics id, and in proportion to the rows (RemotePart::answer).
  virtual int64_t AnswerBytes(int32_t layer, const UnitSpan& units, int32_t num_rows) const = 0;
  // Writes the answer. Errors: kInvalidArgument, naming what is out of range: layer, units (empty,
  // or not before the first row's unit), number of blocks, of rows, of query floats, or
  // answer.size(); kDataLoss: a block does not hold what it should (the hash engine notices).
  // Checks everything first: queries come from another process.
  virtual absl::Status Compute(const PartialQuery& query, absl::Span<std::byte> answer) = 0;
  // A question about `blocks` in `layer` was answered. Starts to fetch, into the calling thread's
  // cache, what the same question would read in the next layer that lends (after the last one: in
  // the first). Returns the bytes; 0 where there is nothing to gain. REQUIRES: blocks of the arena;
  // their contents do not matter.
  virtual int64_t FetchForNextLayer(int32_t, absl::Span<const BlockId>) { return 0; }
};

}  // namespace tandem::engine
