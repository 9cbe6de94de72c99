// Chooses a step's tokens on the device, so that the logits need not be copied to the host.
// Parameters go to the device through one pinned buffer, the sampling kernel runs after the forward
// pass on the same stream, and only tokens and log-probabilities come back. While the device
// computes, the host gathers counts and masks.
//
// The kernel's bits are those of the host's vector classes. Two kinds of rows have their logits
// copied out and are sampled by the host: rows with more than kTopLogprobsMax top tokens, and rows
// with no token left to choose, where the host decides how to continue. Thread safety: one thread.
// Owner: the device engine.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/aligned_buffer.h"
#include "common/engine/engine.h"
#include "common/engine/token_sampler.h"
#include "kernels/api/backend.h"
#include "kernels/api/device.h"
#include "kernels/api/parallel.h"

namespace tandem::engine {

class DeviceSampler {
 public:
  // The kernel reads all logits once more for each top token.
  static constexpr int32_t kTopLogprobsMax = 32;
  // Rows whose logits the host processes at a time. The logits of a whole step could be larger than
  // the model.
  static constexpr int32_t kHostRows = 32;

  struct Options {
    int32_t vocab_size = 0;
    bool on_device = true;  // false: the host serves every row
  };
  // Device and stream are borrowed.
  DeviceSampler(Options options, kernels::Device& device, kernels::DeviceStream& stream,
                kernels::ParallelFor parallel);

  // Allocates buffers for `rows` rows a step; those that are large enough stay. Returns the bytes
  // of the device held. Errors: the device's; it then serves no rows, until Reserve succeeds.
  absl::StatusOr<int64_t> Reserve(int32_t rows);
  // Frees the buffers.
  void Release();

  // Enqueues the choice for the slices with `sample`, whose logits are the rows of `logits` in
  // device memory. REQUIRES: Reserve covers the rows; Finish ended the last Start. Errors: the
  // device's.
  absl::Status Start(absl::Span<const SequenceSlice> slices, const float* logits);
  // Waits for the stream and returns the tokens of the last Start, in slice order. Errors: the
  // device's.
  absl::StatusOr<std::vector<SampledToken>> Finish();

  // The raw log-probabilities of `targets` by the rows of `logits`, and the `num_top` highest of
  // each. REQUIRES: targets.size() ≤ kHostRows; nothing is started. Errors: the device's.
  absl::StatusOr<std::vector<SampledToken>> Score(absl::Span<const TokenId> targets,
                                                  int32_t num_top, const float* logits);

 private:
  // The sizes of a step's arrays in the buffers.
  struct Places {
    size_t input_bytes = 0;
    size_t output_bytes = 0;
  };

  bool IsForHost(const SamplingInputs& inputs) const;
  void FindEqualBiases();
  Places Measure();
  // Errors: the device's; what is missing then is allocated by the next call.
  absl::Status GrowBoth(const Places& needs);
  void Pack();
  void Upload(const Places& places, const float* logits);
  void PrepareInputs(absl::Span<const SequenceSlice> slices);
  // Copies row `row` of `logits` to place `place` of host_logits_.
  void CopyLogits(const float* logits, size_t row, size_t place);
  absl::Status ReserveHostLogits();
  absl::Status SampleOnHost(absl::Span<const size_t> rows, std::vector<SampledToken>* tokens);
  SampledToken ResultOf(size_t row) const;
  const float* HostLogits(size_t place) const {
    return host_logits_.as<float>() + place * static_cast<size_t>(options_.vocab_size);
  }

  const Options options_;
  kernels::Device& device_;
  kernels::DeviceStream& stream_;
  const kernels::ParallelFor parallel_;
  const kernels::Backend& host_;
  std::vector<AlignedBuffer> scratch_;  // [workers]

  // The step under way.
  const float* logits_ = nullptr;
  std::vector<SamplingInputs> inputs_;  // [rows]
  // The row whose list of biases each row has, itself or an earlier one: the answers of a request
  // have one list, which may be as long as the vocabulary, and which is copied once. [rows]
  std::vector<size_t> biases_of_;

  int32_t reserved_rows_ = 0;
  kernels::DeviceBuffer work_;                         // [rows][vocab]
  kernels::DeviceBuffer input_host_, input_device_;    // parameters, biases, counts, masks
  kernels::DeviceBuffer output_host_, output_device_;  // results, top tokens
  kernels::DeviceBuffer host_logits_;                  // pinned, [kHostRows][vocab], once needed
};

}  // namespace tandem::engine
