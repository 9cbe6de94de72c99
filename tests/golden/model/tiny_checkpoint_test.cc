// Goal: every tiny checkpoint, read as safetensors (bf16 and fp8) and as GGUF, gives the logits
// transformers gave in fp32. That proves configuration (rope scaling, windows, scales, biases,
// norms), tensor roles and row orders together. The forward pass here is naive and in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/model/checkpoint.h"
#include "common/model/rope_frequencies.h"
#include "nlohmann/json.hpp"
#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"

namespace tandem::testing {
namespace {

using model::Checkpoint;
using model::LayerConfig;
using model::ModelConfig;
using model::StoredTensor;
using model::TensorRole;
using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;  // [rows][columns]

Matrix Read(const Checkpoint& checkpoint, TensorRole role, int layer) {
  const StoredTensor* tensor = checkpoint.Find(role, layer);
  if (tensor == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(tensor->rows * tensor->columns));
  model::ReadRows(*tensor, 0, tensor->rows, absl::MakeSpan(values));
  Matrix matrix;
  for (int64_t row = 0; row < tensor->rows; ++row) {
    matrix.emplace_back(values.begin() + row * tensor->columns,
                        values.begin() + (row + 1) * tensor->columns);
  }
  return matrix;
}

Vector Multiply(const Matrix& weights, const Vector& x, const Matrix& bias) {
  Vector y(weights.size());
  for (size_t row = 0; row < weights.size(); ++row) {
    y[row] = bias.empty() ? 0.0 : bias[0][row];
    for (size_t i = 0; i < x.size(); ++i) y[row] += weights[row][i] * x[i];
  }
  return y;
}

// Normalises x[begin, begin + weights' size).
void Normalise(const Matrix& weights, double eps, double* x) {
  const size_t size = weights[0].size();
  double squares = 0;
  for (size_t i = 0; i < size; ++i) squares += x[i] * x[i];
  const double scale = 1 / std::sqrt(squares / static_cast<double>(size) + eps);
  for (size_t i = 0; i < size; ++i) x[i] *= scale * weights[0][i];
}

Vector Normalised(const Matrix& weights, double eps, Vector x) {
  Normalise(weights, eps, x.data());
  return x;
}

void Rotate(const LayerConfig& layer, int32_t head_dim, size_t position, double* head) {
  const std::vector<double> frequencies = model::RopeInverseFrequencies(layer, head_dim);
  const double magnitude = layer.rope_scaling.kind == model::RopeScaling::Kind::kYarn
                               ? layer.rope_scaling.attention_factor
                               : 1.0;
  const size_t half = frequencies.size();
  for (size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * frequencies[i];
    const double cosine = magnitude * std::cos(angle);
    const double sine = magnitude * std::sin(angle);
    const double a = head[i];
    const double b = head[i + half];
    head[i] = a * cosine - b * sine;
    head[i + half] = b * cosine + a * sine;
  }
}

// One row's attention: q of position `row` over keys and values of all positions up to it.
Vector Attend(const ModelConfig& config, const LayerConfig& layer, size_t row, const Matrix& q,
              const Matrix& k, const Matrix& v) {
  const size_t dim = static_cast<size_t>(config.head_dim);
  const size_t group = static_cast<size_t>(config.num_heads / config.num_kv_heads);
  const size_t window = static_cast<size_t>(layer.sliding_window);
  const size_t begin = window == 0 || row + 1 < window ? 0 : row + 1 - window;
  Vector out(q[row].size());
  for (size_t head = 0; head < static_cast<size_t>(config.num_heads); ++head) {
    const size_t kv = head / group * dim;
    Vector weights;
    for (size_t t = begin; t <= row; ++t) {
      double score = 0;
      for (size_t i = 0; i < dim; ++i) score += q[row][head * dim + i] * k[t][kv + i];
      weights.push_back(score * static_cast<double>(config.attention_scale));
    }
    const double largest = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - largest);
    for (size_t t = begin; t <= row; ++t) {
      for (size_t i = 0; i < dim; ++i) {
        out[head * dim + i] += weights[t - begin] / sum * v[t][kv + i];
      }
    }
  }
  return out;
}

double Activate(model::Activation activation, double x) {
  if (activation == model::Activation::kSiluMul) return x / (1 + std::exp(-x));
  constexpr double kRootTwoOverPi = 0.79788456080286535588;
  return 0.5 * x * (1 + std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x)));
}

void AddAttention(const Checkpoint& checkpoint, int layer, Matrix& rows) {
  const ModelConfig& config = checkpoint.config();
  const LayerConfig& layer_config = config.layers[static_cast<size_t>(layer)];
  const auto read = [&](TensorRole role) { return Read(checkpoint, role, layer); };
  const double eps = config.rms_norm_eps;
  const size_t dim = static_cast<size_t>(config.head_dim);
  const Matrix norm = read(TensorRole::kAttentionNorm);
  const Matrix wq = read(TensorRole::kQ), wk = read(TensorRole::kK), wv = read(TensorRole::kV);
  const Matrix bq = read(TensorRole::kQBias), bk = read(TensorRole::kKBias);
  const Matrix bv = read(TensorRole::kVBias);
  const Matrix q_norm = read(TensorRole::kQNorm), k_norm = read(TensorRole::kKNorm);
  Matrix q, k, v;
  for (size_t row = 0; row < rows.size(); ++row) {
    const Vector x = Normalised(norm, eps, rows[row]);
    q.push_back(Multiply(wq, x, bq));
    k.push_back(Multiply(wk, x, bk));
    v.push_back(Multiply(wv, x, bv));
    for (size_t head = 0; head < q[row].size(); head += dim) {
      if (!q_norm.empty()) Normalise(q_norm, eps, &q[row][head]);
      Rotate(layer_config, config.head_dim, row, &q[row][head]);
    }
    for (size_t head = 0; head < k[row].size(); head += dim) {
      if (!k_norm.empty()) Normalise(k_norm, eps, &k[row][head]);
      Rotate(layer_config, config.head_dim, row, &k[row][head]);
    }
  }
  const Matrix wo = read(TensorRole::kO), bo = read(TensorRole::kOBias);
  const Matrix post_norm = read(TensorRole::kPostAttentionNorm);
  for (size_t row = 0; row < rows.size(); ++row) {
    Vector y = Multiply(wo, Attend(config, layer_config, row, q, k, v), bo);
    if (!post_norm.empty()) Normalise(post_norm, eps, y.data());
    for (size_t i = 0; i < y.size(); ++i) rows[row][i] += y[i];
  }
}

void AddFfn(const Checkpoint& checkpoint, int layer, Matrix& rows) {
  const ModelConfig& config = checkpoint.config();
  const auto read = [&](TensorRole role) { return Read(checkpoint, role, layer); };
  const Matrix norm = read(TensorRole::kFfnNorm);
  const Matrix post_norm = read(TensorRole::kPostFfnNorm);
  const Matrix gate = read(TensorRole::kGate), up = read(TensorRole::kUp);
  const Matrix down = read(TensorRole::kDown);
  for (Vector& row : rows) {
    const Vector x = Normalised(norm, config.rms_norm_eps, row);
    Vector inner = Multiply(gate, x, {});
    const Vector linear = Multiply(up, x, {});
    for (size_t i = 0; i < inner.size(); ++i) {
      inner[i] = Activate(config.activation, inner[i]) * linear[i];
    }
    Vector y = Multiply(down, inner, {});
    if (!post_norm.empty()) Normalise(post_norm, config.rms_norm_eps, y.data());
    for (size_t i = 0; i < y.size(); ++i) row[i] += y[i];
  }
}

// Logits of every position: [tokens.size()][vocab_size].
Matrix NaiveForward(const Checkpoint& checkpoint, const std::vector<int32_t>& tokens) {
  const ModelConfig& config = checkpoint.config();
  const Matrix embedding = Read(checkpoint, TensorRole::kTokenEmbedding, -1);
  Matrix rows;
  for (const int32_t token : tokens) {
    rows.push_back(embedding[static_cast<size_t>(token)]);
    for (double& x : rows.back()) x *= static_cast<double>(config.embedding_scale);
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    AddAttention(checkpoint, layer, rows);
    AddFfn(checkpoint, layer, rows);
  }
  const Matrix norm = Read(checkpoint, TensorRole::kFinalNorm, -1);
  const Matrix output =
      config.tied_embeddings ? embedding : Read(checkpoint, TensorRole::kOutput, -1);
  Matrix logits;
  for (const Vector& row : rows) {
    logits.push_back(Multiply(output, Normalised(norm, config.rms_norm_eps, row), {}));
  }
  return logits;
}

class TinyCheckpointTest : public ::testing::TestWithParam<std::string> {};

// The reference computes in fp32: some 1e-7 relative error an operation over a few hundred of them
// leaves errors around 1e-5 on logits of magnitude 5. A wrong window, scale or row order is off by
// 1e-2 and more.
constexpr double kTolerance = 1e-4;

TEST_P(TinyCheckpointTest, GivesReferenceLogits) {
  const std::string path = GoldenPath("tiny/" + GetParam());
  const std::string folder = path.substr(0, path.find_last_of('/'));
  const bool is_gguf = path.size() > 5 && path.substr(path.size() - 5) == ".gguf";
  const std::string root = is_gguf ? folder : path;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  const auto golden = nlohmann::json::parse(ReadFileOrEmpty(root + "/golden.json"), nullptr, false);
  ASSERT_TRUE(golden.is_object()) << root;
  const auto tokens = golden["tokens"].get<std::vector<int32_t>>();
  const auto positions = golden["positions"].get<std::vector<size_t>>();
  const std::string reference = ReadFileOrEmpty(root + "/logits.f32");
  const size_t vocab_size = static_cast<size_t>(checkpoint->config().vocab_size);
  ASSERT_EQ(reference.size(), positions.size() * vocab_size * sizeof(float));

  const Matrix logits = NaiveForward(*checkpoint, tokens);
  double worst = 0;
  for (size_t p = 0; p < positions.size(); ++p) {
    for (size_t id = 0; id < vocab_size; ++id) {
      float expected = 0;
      std::memcpy(&expected, reference.data() + (p * vocab_size + id) * sizeof(float),
                  sizeof(float));
      worst = std::max(worst, std::abs(logits[positions[p]][id] - static_cast<double>(expected)));
    }
  }
  EXPECT_LT(worst, kTolerance);
}

INSTANTIATE_TEST_SUITE_P(All, TinyCheckpointTest,
                         ::testing::Values("llama", "llama/llama.gguf", "llama3",
                                           "llama3/llama3.gguf", "smollm2", "mistral", "qwen2",
                                           "qwen2/qwen2.gguf", "qwen3", "qwen3/qwen3.gguf",
                                           "qwen3_yarn", "gemma3", "gemma3/gemma3.gguf",
                                           "llama_fp8_channel", "llama_fp8_tensor",
                                           "qwen3_fp8_block"),
                         [](const ::testing::TestParamInfo<std::string>& param) {
                           std::string name = param.param;
                           for (char& c : name) {
                             if (c == '/' || c == '.') c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace tandem::testing
