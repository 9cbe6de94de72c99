#include "common/engine/device/device_sampler.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/engine/device/device_partials.h"
#include "kernels/api/device_ops.h"
#include "kernels/api/device_sampling.h"

namespace tandem::engine {
namespace {

using kernels::DeviceBuffer;
using kernels::DeviceSampleRow;
using kernels::SamplingResult;
using kernels::TokenLogprob;

// Room for each row's biases, counts and part of a mask from the start; more is made when needed.
constexpr size_t kRowBytesReserved = 1024;

// Appends arrays to pinned memory, at the offsets that they will have on the device.
class Packer {
 public:
  Packer(char* host, char* device) : host_(host), device_(device) {}

  // The device's address of the copy; nullptr for an empty array.
  template <typename T>
  const T* Put(absl::Span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 4);
    const size_t bytes = values.size() * sizeof(T);
    if (bytes == 0) return nullptr;
    std::memcpy(host_ + used_, values.data(), bytes);
    return reinterpret_cast<const T*>(device_ + std::exchange(used_, used_ + bytes));
  }
  void Skip(size_t bytes) { used_ += bytes; }

 private:
  char* const host_;
  char* const device_;
  size_t used_ = 0;
};

template <typename T>
size_t BytesOf(absl::Span<const T> values) {
  return values.size() * sizeof(T);
}

absl::Span<const kernels::TokenBias> BiasesOf(const SamplingInputs& inputs) {
  return absl::MakeConstSpan(inputs.biases);
}

absl::Span<const kernels::TokenCount> CountsOf(const SamplingInputs& inputs) {
  return absl::MakeConstSpan(inputs.args.counts, static_cast<size_t>(inputs.args.num_counts));
}

void CheckBiases(absl::Span<const kernels::TokenBias> biases, int32_t vocab_size) {
  TokenId before = -1;
  for (const kernels::TokenBias& bias : biases) {
    TANDEM_CHECK(bias.token >= before && bias.token < vocab_size, "bias of token ", bias.token,
                 " after ", before);
    before = bias.token;
  }
}

bool HaveSameBiases(const SamplingInputs& a, const SamplingInputs& b) {
  return a.biases.size() == b.biases.size() &&
         std::memcmp(a.biases.data(), b.biases.data(), BytesOf(BiasesOf(a))) == 0;
}

// All but the biases.
DeviceSampleRow RowOf(const SamplingInputs& inputs, Packer& packer) {
  DeviceSampleRow row;
  if (inputs.only >= 0) {
    row.known_token = inputs.only;
    return row;
  }
  const kernels::SamplingArgs& args = inputs.args;
  row.temperature = args.temperature;
  row.top_k = args.top_k;
  row.top_p = args.top_p;
  row.min_p = args.min_p;
  row.repetition_penalty = args.repetition_penalty;
  row.presence_penalty = args.presence_penalty;
  row.frequency_penalty = args.frequency_penalty;
  row.num_biases = args.num_biases;
  row.num_counts = args.num_counts;
  row.counts = packer.Put(CountsOf(inputs));
  row.allowed_tokens = packer.Put(absl::MakeConstSpan(inputs.mask));
  row.seed = args.seed;
  row.sequence_index = args.sequence_index;
  row.position = args.position;
  row.want_logprob = args.want_logprob ? 1 : 0;
  row.num_top_logprobs = args.num_top_logprobs;
  return row;
}

}  // namespace

DeviceSampler::DeviceSampler(Options options, kernels::Device& device,
                             kernels::DeviceStream& stream, kernels::ParallelFor parallel)
    : options_(options),
      device_(device),
      stream_(stream),
      parallel_(parallel),
      host_(kernels::BestPortableBackend()) {
  for (int i = 0; i < parallel_.num_workers; ++i) {
    scratch_.emplace_back(kernels::SamplingScratchBytes(options_.vocab_size));
  }
}

absl::StatusOr<int64_t> DeviceSampler::Reserve(int32_t rows) {
  reserved_rows_ = 0;
  const size_t count = static_cast<size_t>(rows);
  const size_t work_bytes =
      options_.on_device ? count * static_cast<size_t>(options_.vocab_size) * sizeof(float) : 0;
  RETURN_IF_ERROR(Grow(device_, DeviceBuffer::Kind::kDevice, work_bytes, &work_));
  RETURN_IF_ERROR(GrowBoth({count * (sizeof(DeviceSampleRow) + kRowBytesReserved),
                            count * (sizeof(SamplingResult) + sizeof(TokenLogprob))}));
  reserved_rows_ = rows;
  return static_cast<int64_t>(work_.bytes() + input_device_.bytes() + output_device_.bytes());
}

void DeviceSampler::Release() {
  reserved_rows_ = 0;
  for (DeviceBuffer* buffer :
       {&work_, &input_host_, &input_device_, &output_host_, &output_device_}) {
    *buffer = DeviceBuffer();
  }
}

absl::Status DeviceSampler::GrowBoth(const Places& needs) {
  const auto grow = [this](size_t bytes, DeviceBuffer& host, DeviceBuffer& device) {
    const size_t held = std::min(host.bytes(), device.bytes());
    if (bytes <= held) return absl::OkStatus();
    // At least double the buffer: histories grow by a token a step.
    bytes = std::max(bytes, 2 * held);
    RETURN_IF_ERROR(Grow(device_, DeviceBuffer::Kind::kPinnedHost, bytes, &host));
    return Grow(device_, DeviceBuffer::Kind::kDevice, bytes, &device);
  };
  RETURN_IF_ERROR(grow(needs.input_bytes, input_host_, input_device_));
  return grow(needs.output_bytes, output_host_, output_device_);
}

bool DeviceSampler::IsForHost(const SamplingInputs& inputs) const {
  return inputs.only < 0 && (!options_.on_device || inputs.args.num_top_logprobs > kTopLogprobsMax);
}

void DeviceSampler::FindEqualBiases() {
  biases_of_.resize(inputs_.size());
  std::optional<size_t> last;  // with biases
  for (size_t i = 0; i < inputs_.size(); ++i) {
    biases_of_[i] = i;
    if (IsForHost(inputs_[i]) || inputs_[i].biases.empty()) continue;
    if (last.has_value() && HaveSameBiases(inputs_[*last], inputs_[i])) {
      biases_of_[i] = *last;
    } else {
      last = i;
    }
  }
}

DeviceSampler::Places DeviceSampler::Measure() {
  FindEqualBiases();
  Places places = {inputs_.size() * sizeof(DeviceSampleRow),
                   inputs_.size() * sizeof(SamplingResult)};
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const SamplingInputs& inputs = inputs_[i];
    if (IsForHost(inputs)) continue;
    if (biases_of_[i] == i) places.input_bytes += BytesOf(BiasesOf(inputs));
    places.input_bytes += BytesOf(CountsOf(inputs)) + BytesOf(absl::MakeConstSpan(inputs.mask));
    places.output_bytes += static_cast<size_t>(inputs.args.num_top_logprobs) * sizeof(TokenLogprob);
  }
  return places;
}

void DeviceSampler::Pack() {
  Packer packer(input_host_.data(), input_device_.data());
  packer.Skip(inputs_.size() * sizeof(DeviceSampleRow));
  DeviceSampleRow* rows = input_host_.as<DeviceSampleRow>();
  auto* top = reinterpret_cast<TokenLogprob*>(output_device_.data() +
                                              inputs_.size() * sizeof(SamplingResult));
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (IsForHost(inputs_[i])) {
      rows[i] = DeviceSampleRow{.known_token = 0};
      continue;
    }
    rows[i] = RowOf(inputs_[i], packer);
    rows[i].top_logprobs = top;
    top += rows[i].num_top_logprobs;
    if (biases_of_[i] != i) {
      rows[i].biases = rows[biases_of_[i]].biases;
      continue;
    }
    CheckBiases(inputs_[i].biases, options_.vocab_size);
    rows[i].biases = packer.Put(BiasesOf(inputs_[i]));
  }
}

void DeviceSampler::Upload(const Places& places, const float* logits) {
  stream_.CopyIn(input_device_.data(), input_host_.data(), places.input_bytes);
  kernels::DeviceSampleArgs args;
  args.logits = logits;
  args.vocab_size = options_.vocab_size;
  args.rows = static_cast<int32_t>(inputs_.size());
  args.parameters = input_device_.as<DeviceSampleRow>();
  args.work = work_.as<float>();
  args.results = output_device_.as<SamplingResult>();
  device_.ops().sample(args, stream_);
  stream_.CopyOut(output_host_.data(), output_device_.data(), places.output_bytes);
}

void DeviceSampler::PrepareInputs(absl::Span<const SequenceSlice> slices) {
  std::vector<const SequenceSlice*> sampling;
  bool slow = false;  // whether some rows have a history to walk, or lists over the vocabulary
  for (const SequenceSlice& slice : slices) {
    if (!slice.sample) continue;
    sampling.push_back(&slice);
    slow = slow || slice.sampling->has_penalties() || !slice.allowed.empty() ||
           !slice.sampling->logit_bias.empty() || !slice.sampling->allowed_token_ids.empty();
  }
  inputs_.clear();
  inputs_.resize(sampling.size());
  const auto prepare = [&](int64_t i, int) {
    const size_t index = static_cast<size_t>(i);
    inputs_[index] = InputsOf(*sampling[index], options_.vocab_size);
  };
  // Waking the workers costs more than a few rows without options.
  (slow ? parallel_ : kernels::ParallelFor())(static_cast<int64_t>(sampling.size()), prepare);
}

absl::Status DeviceSampler::Start(absl::Span<const SequenceSlice> slices, const float* logits) {
  PrepareInputs(slices);
  logits_ = logits;
  if (inputs_.empty() || !options_.on_device) return absl::OkStatus();
  TANDEM_CHECK(inputs_.size() <= static_cast<size_t>(reserved_rows_), inputs_.size(),
               " rows, reserved are ", reserved_rows_);
  const Places places = Measure();
  RETURN_IF_ERROR(GrowBoth(places));
  Pack();
  Upload(places, logits);
  return absl::OkStatus();
}

SampledToken DeviceSampler::ResultOf(size_t row) const {
  const SamplingResult& result = output_host_.as<SamplingResult>()[row];
  const DeviceSampleRow& parameters = input_host_.as<DeviceSampleRow>()[row];
  // The same place in the host's copy.
  const TokenLogprob* top = nullptr;
  if (parameters.num_top_logprobs > 0) {
    top = reinterpret_cast<const TokenLogprob*>(
        output_host_.data() +
        (reinterpret_cast<char*>(parameters.top_logprobs) - output_device_.data()));
  }
  return ToSampled(result.token, result.logprob,
                   absl::MakeConstSpan(top, static_cast<size_t>(parameters.num_top_logprobs)));
}

absl::StatusOr<std::vector<SampledToken>> DeviceSampler::Finish() {
  RETURN_IF_ERROR(stream_.Synchronize());
  std::vector<SampledToken> tokens(inputs_.size());
  std::vector<size_t> for_host;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].only >= 0) {
      tokens[i].token = inputs_[i].only;
    } else if (IsForHost(inputs_[i]) || output_host_.as<SamplingResult>()[i].token < 0) {
      for_host.push_back(i);
    } else {
      tokens[i] = ResultOf(i);
    }
  }
  for (size_t begin = 0; begin < for_host.size(); begin += kHostRows) {
    RETURN_IF_ERROR(SampleOnHost(absl::MakeConstSpan(for_host).subspan(begin, kHostRows), &tokens));
  }
  return tokens;
}

absl::Status DeviceSampler::ReserveHostLogits() {
  if (host_logits_.bytes() > 0) return absl::OkStatus();
  const size_t bytes = size_t{kHostRows} * static_cast<size_t>(options_.vocab_size) * sizeof(float);
  ASSIGN_OR_RETURN(host_logits_, device_.Allocate(DeviceBuffer::Kind::kPinnedHost, bytes));
  return absl::OkStatus();
}

void DeviceSampler::CopyLogits(const float* logits, size_t row, size_t place) {
  const size_t vocab = static_cast<size_t>(options_.vocab_size);
  stream_.CopyOut(host_logits_.as<float>() + place * vocab, logits + row * vocab,
                  vocab * sizeof(float));
}

absl::Status DeviceSampler::SampleOnHost(absl::Span<const size_t> rows,
                                         std::vector<SampledToken>* tokens) {
  RETURN_IF_ERROR(ReserveHostLogits());
  for (size_t i = 0; i < rows.size(); ++i) CopyLogits(logits_, rows[i], i);
  RETURN_IF_ERROR(stream_.Synchronize());
  parallel_(static_cast<int64_t>(rows.size()), [&](int64_t i, int worker) {
    const size_t index = static_cast<size_t>(i);
    (*tokens)[rows[index]] = SampleToken(inputs_[rows[index]], HostLogits(index), host_,
                                         scratch_[static_cast<size_t>(worker)].data());
  });
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SampledToken>> DeviceSampler::Score(absl::Span<const TokenId> targets,
                                                               int32_t num_top,
                                                               const float* logits) {
  TANDEM_CHECK(targets.size() <= kHostRows, targets.size(), " rows to score");
  std::vector<SampledToken> scores(targets.size());
  if (options_.on_device && num_top <= kTopLogprobsMax) {
    inputs_.clear();
    inputs_.resize(targets.size());
    for (SamplingInputs& inputs : inputs_) {
      inputs.args.want_logprob = true;
      inputs.args.num_top_logprobs = std::min(num_top, options_.vocab_size);
    }
    const Places places = Measure();
    RETURN_IF_ERROR(GrowBoth(places));
    Pack();
    for (size_t i = 0; i < targets.size(); ++i) {
      input_host_.as<DeviceSampleRow>()[i].known_token = targets[i];
    }
    Upload(places, logits);
    RETURN_IF_ERROR(stream_.Synchronize());
    for (size_t i = 0; i < targets.size(); ++i) scores[i] = ResultOf(i);
    return scores;
  }
  RETURN_IF_ERROR(ReserveHostLogits());
  for (size_t i = 0; i < targets.size(); ++i) CopyLogits(logits, i, i);
  RETURN_IF_ERROR(stream_.Synchronize());
  const size_t vocab = static_cast<size_t>(options_.vocab_size);
  parallel_(static_cast<int64_t>(targets.size()), [&](int64_t i, int worker) {
    const size_t index = static_cast<size_t>(i);
    scores[index] =
        ScoreToken(targets[index], num_top, absl::MakeConstSpan(HostLogits(index), vocab), host_,
                   scratch_[static_cast<size_t>(worker)].data());
  });
  return scores;
}

}  // namespace tandem::engine
