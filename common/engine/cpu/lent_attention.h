// One layer's attention for a batch in which some sequences have lent KV: their rows' queries go to
// the creditors, the rows attend to the local partitions meanwhile, and all records are merged in
// index order. Other sequences take the plain operator. A sequence's output has the bits that the
// plain operator gives it when all of its KV is local (kernels/api/attention_partials.h).
// Thread safety: none; the engine thread. Owner: the CPU engine's ForwardPass.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/aligned_buffer.h"
#include "common/engine/remote_attention.h"
#include "kernels/api/backend.h"

namespace tandem::engine {

class LentAttention {
 public:
  // `backend` outlives it.
  LentAttention(const kernels::Backend& backend, const kernels::ParallelFor& parallel)
      : backend_(backend), parallel_(parallel) {}

  // Outlives the last Attend.
  void SetPeers(RemoteAttention* peers) { peers_ = peers; }

  // As backend.attention(args): `remote[i]` is what args.sequences[i] has lent, or null. A sequence
  // whose creditor does not answer gets remote[i]->failure and output that means nothing; once it
  // has failed it is not computed. REQUIRES: SetPeers; args.sliding_window is 0.
  void Attend(const kernels::AttentionArgs& args, absl::Span<RemoteKv* const> remote, int layer);

 private:
  // A sequence with lent KV: its parts, then its local records.
  struct Borrower {
    kernels::SequenceRows rows;
    RemoteKv* remote = nullptr;
    size_t first_part = 0;  // of parts_; as many as remote->lent has
    kernels::PartitionSpan local;
    size_t local_floats = 0;  // where its local records begin, in records_
  };
  void Sort(const kernels::AttentionArgs& args, absl::Span<RemoteKv* const> remote, int layer);
  void ComputeLocal(const kernels::AttentionArgs& args);
  void Merge(const kernels::AttentionArgs& args);

  const kernels::Backend& backend_;
  const kernels::ParallelFor parallel_;
  RemoteAttention* peers_ = nullptr;
  // Of the layer. Bound: the step's slices, and their loans.
  std::vector<kernels::SequenceRows> plain_;
  std::vector<Borrower> borrowers_;
  std::vector<RemotePart> parts_;
  AlignedBuffer records_;  // of all parts and of all local spans
  AlignedBuffer scratch_;
};

// Partitions as the kernels count them.
inline kernels::PartitionSpan PartitionsOf(const UnitSpan& units) {
  return {units.first, units.end};
}
// Bytes of the records of a span for some rows.
int64_t RecordBytes(const kernels::PartitionSpan& span, int32_t rows, int32_t heads,
                    int32_t head_dim);

}  // namespace tandem::engine
