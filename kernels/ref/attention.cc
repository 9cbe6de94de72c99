// Attention by its formula (kernels/api/attention.h): one softmax over all tokens of a row's range,
// in double.
#include <cmath>
#include <vector>

#include "kernels/ref/ops.h"

namespace tandem::kernels::ref {
namespace {

// One row of the batch and its place in its sequence.
struct Row {
  const SequenceRows* sequence;
  int64_t row;
  int32_t position;
};

void ReadToken(const AttentionArgs& args, const Row& row, int32_t kv_head, int32_t token,
               bool value, float* out) {
  const int32_t block_tokens = args.layer.shape.block_tokens;
  KvReadArgs read;
  read.layer = args.layer;
  read.block = row.sequence->block_table[token / block_tokens];
  read.kv_head = kv_head;
  read.value = value;
  read.token = token % block_tokens;
  read.out = out;
  KvRead(read);
}

void AttendHead(const AttentionArgs& args, const Row& row, int32_t head) {
  const int32_t head_dim = args.layer.shape.head_dim;
  const int32_t kv_head = head / (args.num_heads / args.layer.shape.num_kv_heads);
  const float* q = args.q + row.row * args.q_stride + head * head_dim;
  int32_t begin = 0;
  if (args.sliding_window > 0 && row.position + 1 > args.sliding_window) {
    begin = row.position + 1 - args.sliding_window;
  }
  std::vector<float> vector(static_cast<size_t>(head_dim));
  std::vector<double> scores;
  double most = -INFINITY;
  for (int32_t t = begin; t <= row.position; ++t) {
    ReadToken(args, row, kv_head, t, false, vector.data());
    double score = 0;
    for (int32_t d = 0; d < head_dim; ++d) {
      score += static_cast<double>(q[d]) * vector[static_cast<size_t>(d)];
    }
    scores.push_back(score * args.scale);
    most = std::max(most, scores.back());
  }
  std::vector<double> out(static_cast<size_t>(head_dim));
  double sum = 0;
  for (int32_t t = begin; t <= row.position; ++t) {
    const double p = std::exp(scores[static_cast<size_t>(t - begin)] - most);
    sum += p;
    ReadToken(args, row, kv_head, t, true, vector.data());
    for (size_t d = 0; d < out.size(); ++d) out[d] += p * vector[d];
  }
  float* y = args.out + row.row * args.out_stride + head * head_dim;
  for (size_t d = 0; d < out.size(); ++d) y[d] = static_cast<float>(out[d] / sum);
}

}  // namespace

void Attention(const AttentionArgs& args, const ParallelFor& parallel) {
  std::vector<Row> rows;
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    const SequenceRows& sequence = args.sequences[s];
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      rows.push_back({&sequence, sequence.first_row + i, sequence.first_position + i});
    }
  }
  parallel(static_cast<int64_t>(rows.size()), [&](int64_t row, int) {
    for (int32_t head = 0; head < args.num_heads; ++head) {
      AttendHead(args, rows[static_cast<size_t>(row)], head);
    }
  });
}

}  // namespace tandem::kernels::ref
