// One layer's attention on a device for the sequences of a step that have lent KV: their rows'
// queries go to the creditors, the device attends to the partitions that lie here and to the step's
// other sequences meanwhile, and all records are merged in index order. A row has the bits that
// plain attention gives it when all of its KV is local.
//
//   device   … q ─copy─▶ local records, other sequences        ─records─▶ merge …
//   host               wait │ Ask …………………………………… Collect │ copy
//
// Records of many rows over a long context are large, so rows go in waves of bounded size. Each
// wave is a round trip; generated rows of a step are one.
// Thread safety: none; the engine thread. Owner: the device engine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/engine/device/device_partials.h"
#include "common/engine/engine.h"
#include "common/engine/remote_attention.h"

namespace tandem::engine {

class DeviceLentAttention {
 public:
  // `device` and `stream`, the engine's, outlive it.
  DeviceLentAttention(const DevicePartials::Options& options, kernels::Device& device,
                      kernels::DeviceStream& stream);

  // Outlives the last Attend.
  void SetPeers(RemoteAttention* peers) { peers_ = peers; }

  // Takes a step's sequences that have lent KV, and clears their failures. `slices` stay until the
  // last Attend of the step. REQUIRES: SetPeers, if there are any.
  void StartStep(absl::Span<const SequenceSlice> slices);
  bool empty() const { return borrowers_.empty(); }

  struct Layer {
    int index = 0;
    char* region = nullptr;                // its KV in device memory
    const kernels::Bf16Bits* q = nullptr;  // [rows][heads · head_dim], of the step's batch
    kernels::Bf16Bits* out = nullptr;      // the same shape
  };
  // Enqueues the layer's attention of these sequences, and waits for the creditors. Calls
  // `meanwhile`, which enqueues that of the others, while the questions are on their way. A
  // sequence whose creditor does not answer gets remote->failure and rows of zeros. After a failure
  // of the device it does nothing, and status() says why. REQUIRES: not empty.
  void Attend(const Layer& layer, absl::FunctionRef<void()> meanwhile);
  // The first failure of the device in this step.
  const absl::Status& status() const { return status_; }

 private:
  struct Borrower {
    RemoteKv* remote = nullptr;
    int32_t first_row = 0;  // in the batch
    int32_t num_rows = 0;
    int32_t first_position = 0;
    int32_t units = 0;  // that are lent, from 0 on
    absl::Span<const BlockId> blocks;
  };
  // The rows of a borrower in a wave.
  struct Share {
    const Borrower* borrower = nullptr;
    int32_t first_row = 0;  // of the borrower's
    int32_t num_rows = 0;
    size_t first_chunk = 0;  // of work_.merges
    size_t first_part = 0;   // of parts_; as many as remote->lent has
    size_t first_q = 0;      // of queries_
  };
  // The first row of the next wave.
  struct Place {
    size_t borrower = 0;
    int32_t row = 0;
  };

  // Fills shares_ and work_ with the rows from *place on, as many as fit. False: there are none.
  bool TakeWave(Place* place);
  void AddChunk(const Borrower& borrower, int32_t first_row, int32_t num_rows);
  absl::Status RunWave(const Layer& layer, absl::FunctionRef<void()> meanwhile);
  absl::Status CopyQueries(const Layer& layer);
  void MakeParts(int layer);
  absl::Status CopyAnswers();
  int64_t q_floats() const { return int64_t{options_.num_heads} * options_.kv.head_dim; }

  const DevicePartials::Options options_;
  kernels::Device& device_;
  kernels::DeviceStream& stream_;
  RemoteAttention* peers_ = nullptr;
  DevicePartials partials_;
  absl::Status status_;
  std::vector<Borrower> borrowers_;  // of the step; at most its slices
  // Of a wave.
  std::vector<Share> shares_;
  DevicePartials::Work work_;
  std::vector<RemotePart> parts_;
  std::vector<float> queries_;          // [rows][q_floats]
  std::vector<std::byte> answers_;      // of all parts
  kernels::DeviceBuffer q_host_;        // [rows][q_floats] bf16, pinned
  kernels::DeviceBuffer records_host_;  // of lent partitions, chunk by chunk, pinned
  std::unique_ptr<kernels::DeviceEvent> queries_copied_;
};

}  // namespace tandem::engine
