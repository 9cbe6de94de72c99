// Goal: on real checkpoints the CPU engine says what transformers says in fp32 on the dequantised
// weights, with the cache in bf16 (the default) and in fp32: the same greedy answers wherever the
// reference's choice is clearer than a derived tolerance, the same most likely token at 99 % of all
// positions of varied text, and nearly the same distributions.
//
// By default the documents' first 2,000 positions are compared; TANDEM_GOLDEN_POSITIONS=20000 takes
// all of them. The goldens are made by scripts/make_goldens/real_models.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <ostream>

#include "absl/strings/numbers.h"
#include "cli/bench/document_scorer.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/model/tokenizer/tokenizer.h"
#include "tests/golden/real_models/agreement.h"
#include "tests/golden/real_models/greedy_batch.h"
#include "tests/golden/real_models/reference.h"
#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"

namespace tandem::testing {
namespace {

constexpr double kTopShareMin = 0.99;  // of positions
constexpr double kKlMeanMax = 1e-3;
constexpr double kInt8TopShareMin = 0.89;
constexpr double kInt8KlMeanMax = 2e-2;
constexpr double kInt8ComparedShareMin = 0.25;
constexpr double kComparedShareMin = 0.6;

struct Case {
  const char* name;
  const char* model;  // of the golden
  const char* file;
  const char* kv_type;
  // CpuEngineOptions::numerics; or the instruction-set class that multiplies in bf16, "avx512bf16"
  // or "amx"; or, with products of whole numbers, CpuEngineOptions::weights.
  const char* numerics;
  double logit_deviation;  // of a position's logits over the vocabulary, typically
  int layers;

  kernels::KvType KvType() const {
    if (kv_type == std::string("int8")) return kernels::KvType::kInt8;
    return kv_type == std::string("f32") ? kernels::KvType::kF32 : kernels::KvType::kBf16;
  }
  bool stored() const { return numerics == std::string("as-stored"); }
  bool int8() const { return stored() || numerics == std::string("int8"); }
  engine::WeightFormat weights() const {
    if (stored()) return engine::WeightFormat::kAsStored;
    return int8() ? engine::WeightFormat::kInt8 : engine::WeightFormat::kAuto;
  }
  double TopShareMin() const { return int8() ? kInt8TopShareMin : kTopShareMin; }
  double ComparedShareMin() const { return int8() ? kInt8ComparedShareMin : kComparedShareMin; }
  double KlMeanMax() const { return int8() ? kInt8KlMeanMax : kKlMeanMax; }

  // The instruction-set class that multiplies in bf16; nullopt in the other cases.
  std::optional<kernels::IsaClass> bf16_class() const {
    if (numerics == std::string("avx512bf16")) return kernels::IsaClass::kAvx512Bf16;
    if (numerics == std::string("amx")) return kernels::IsaClass::kAmx;
    return std::nullopt;
  }

  // How far the difference of two logits may be off. Each layer's attention reads K and V with a
  // relative rounding error u; the errors of layers are independent, so the final hidden state,
  // and with it a logit, is off by about u·√layers of its deviation, and a difference of two
  // logits by √2 times that. Rounding errors of many terms are nearly normal: none of 20,000
  // positions is expected beyond six deviations.
  // bf16 has u = 2⁻⁹. With fp32 there is only the order of sums: a sum of k terms is off by about
  // 2⁻²⁴·√k, and a layer has seven products with k of at most some 2,000.
  // The class avx512bf16 rounds the weights and the inputs of four products and q, p, K and V in
  // each layer to bf16, twelve roundings where the cache alone makes one. The class amx rounds at
  // fewer places.
  double GapTolerance() const {
    // A rounding to int8 errs by a uniform part of a step, a 127th of the largest of its group:
    // with a largest value of six deviations, by 6/(127·√12) of the deviation. Weights and inputs
    // of four products are rounded so, and with an int8 cache q, K and V. Weights taken as stored
    // err by less: nothing.
    const bool int8_cache = kv_type == std::string("int8");
    if (int8()) {
      const double step = 6 / (127 * std::sqrt(12.0));
      return 6 * std::sqrt(2.0) * logit_deviation * step *
             std::sqrt((int8_cache ? 11 : 8) * static_cast<double>(layers));
    }
    if (bf16_class())
      return 6 * std::sqrt(2.0) * logit_deviation * std::ldexp(1, -9) * std::sqrt(12 * layers);
    const double rounding = kv_type == std::string("bf16")
                                ? std::ldexp(1, -9)
                                : std::ldexp(1, -24) * std::sqrt(2000.0 * 7);
    return 6 * std::sqrt(2.0) * logit_deviation * rounding * std::sqrt(layers);
  }
};

void PrintTo(const Case& test_case, std::ostream* out) { *out << test_case.name; }

// All of the reference where rounding leaves little room above kTopShareMin: a tenth of it would
// miss or meet the bound by chance.
int64_t PositionsToCompare(const Case& test_case) {
  int64_t positions = test_case.bf16_class() ? 20000 : 2000;
  if (const char* text = std::getenv("TANDEM_GOLDEN_POSITIONS"); text != nullptr) {
    TANDEM_CHECK(absl::SimpleAtoi(text, &positions) && positions >= 1000,
                 "TANDEM_GOLDEN_POSITIONS is \"", text, "\", expected 1000 or more");
  }
  return positions;
}

class RealModel : public ::testing::TestWithParam<Case> {};

TEST_P(RealModel, DistributionsAgree) {
  TANDEM_FIND_MODEL_OR_SKIP(path, GetParam().file);
  const Reference reference = ReadReference(GetParam().model);
  const kernels::KvType kv_type = GetParam().KvType();
  const kernels::Backend* backend = &kernels::BestPortableBackend();
  if (const auto isa = GetParam().bf16_class()) backend = kernels::FindBackend(*isa);
  if (backend == nullptr) GTEST_SKIP() << "this processor lacks " << GetParam().numerics;
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, model::Checkpoint::Open(path));
  ASSERT_OK_AND_ASSIGN(
      const auto scorer,
      engine::DocumentScorer::Create(
          *checkpoint, {.backend = *backend, .weights = GetParam().weights(), .kv_type = kv_type}));
  const int64_t wanted = PositionsToCompare(GetParam());
  Agreement total;
  for (const ReferenceDocument& document : reference.documents) {
    if (total.positions >= wanted) break;
    const auto size =
        std::min<int64_t>(static_cast<int64_t>(document.tokens.size()), wanted - total.positions);
    for (int64_t begin = 0; begin < size; begin += engine::DocumentScorer::kChunkRows) {
      const int64_t rows = std::min(engine::DocumentScorer::kChunkRows, size - begin);
      scorer->Score(document.tokens, begin, rows);
      std::vector<PositionAgreement> agreements(static_cast<size_t>(rows));
      scorer->parallel()(rows, [&](int64_t row, int) {
        agreements[static_cast<size_t>(row)] =
            Compare(document, static_cast<size_t>(begin + row), scorer->Row(row));
      });
      for (const PositionAgreement& agreement : agreements) total.Add(agreement);
    }
  }
  const double tolerance = GetParam().GapTolerance();
  std::printf(
      "%s: %lld positions, top-1 %.3f %%, mean KL %.3g, top-two gap off by rms %.3g max %.3g "
      "(tolerance %.3g), logits deviate by %.3g\n",
      GetParam().name, static_cast<long long>(total.positions), 100 * total.TopShare(),
      total.KlMean(), total.GapErrorRms(), total.gap_error_max, tolerance, total.LogitDeviation());
  EXPECT_EQ(total.positions, std::min<int64_t>(wanted, 20000));
  EXPECT_GE(total.TopShare(), GetParam().TopShareMin());
  EXPECT_LE(total.KlMean(), GetParam().KlMeanMax());
  EXPECT_LE(total.gap_error_max, tolerance);
  // What the tolerance is derived from.
  EXPECT_NEAR(total.LogitDeviation(), GetParam().logit_deviation, 0.2 * GetParam().logit_deviation);
}

TEST_P(RealModel, GreedyAnswersAgree) {
  TANDEM_FIND_MODEL_OR_SKIP(path, GetParam().file);
  const std::vector<ReferenceAnswer> references = ReadReference(GetParam().model).answers;
  ASSERT_EQ(references.size(), 50u);
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, model::Checkpoint::Open(path));
  engine::CpuEngineOptions options;
  options.kv_type = GetParam().kv_type;
  if (GetParam().int8()) {
    options.weights = GetParam().numerics;
    options.numerics = "portable";
  } else if (const auto isa = GetParam().bf16_class(); !isa) {
    options.numerics = GetParam().numerics;
  } else if (kernels::FindBackend(*isa) != nullptr) {
    options.isa = GetParam().numerics;
  } else {
    GTEST_SKIP() << "this processor lacks " << GetParam().numerics;
  }
  ASSERT_OK_AND_ASSIGN(const auto engine, engine::NewCpuEngine(*checkpoint, options));
  std::vector<std::vector<TokenId>> prompts;
  size_t tokens = 0;
  for (const ReferenceAnswer& reference : references) {
    prompts.push_back(reference.prompt);
    tokens += reference.answer.size();
  }
  ASSERT_OK_AND_ASSIGN(const auto batch, GreedyBatch::Create(engine.get(), std::move(prompts)));
  std::vector<size_t> compared(references.size());
  size_t whole = 0, compared_tokens = 0;
  ASSERT_OK(batch->Run([&](size_t sequence, TokenId token) {
    const ReferenceAnswer& reference = references[sequence];
    const size_t at = compared[sequence];
    if (token != reference.answer[at]) {
      EXPECT_LE(reference.gaps[at], GetParam().GapTolerance())
          << "prompt " << sequence << ", token " << at << ": chose " << token << ", expected "
          << reference.answer[at];
      return false;  // what follows has another context
    }
    ++compared_tokens;
    if (++compared[sequence] < reference.answer.size()) return true;
    ++whole;
    return false;
  }));
  std::printf("%s: %zu of %zu answers equal to their end, %zu of %zu tokens compared\n",
              GetParam().name, whole, references.size(), compared_tokens, tokens);
  EXPECT_GE(static_cast<double>(compared_tokens),
            GetParam().ComparedShareMin() * static_cast<double>(tokens));
}

INSTANTIATE_TEST_SUITE_P(
    Models, RealModel,
    ::testing::Values(Case{"SmolLm2KvBf16", "smollm2", kSmolLm2File, "bf16", "portable", 3.4, 30},
                      Case{"SmolLm2KvF32", "smollm2", kSmolLm2File, "f32", "portable", 3.4, 30},
                      Case{"Gemma3KvBf16", "gemma3", kGemma3File, "bf16", "portable", 4.4, 18},
                      Case{"Gemma3KvF32", "gemma3", kGemma3File, "f32", "portable", 4.4, 18},
                      Case{"SmolLm2Dot", "smollm2", kSmolLm2File, "bf16", "avx512bf16", 3.4, 30},
                      Case{"Gemma3Dot", "gemma3", kGemma3File, "bf16", "avx512bf16", 4.4, 18},
                      Case{"SmolLm2Tiles", "smollm2", kSmolLm2File, "bf16", "amx", 3.4, 30},
                      Case{"Gemma3Tiles", "gemma3", kGemma3File, "bf16", "amx", 4.4, 18},
                      Case{"SmolLm2Int8", "smollm2", kSmolLm2File, "bf16", "int8", 3.4, 30},
                      Case{"Gemma3Int8", "gemma3", kGemma3File, "bf16", "int8", 4.4, 18},
                      Case{"SmolLm2AsStored", "smollm2", kSmolLm2File, "bf16", "as-stored", 3.4,
                           30},
                      Case{"Gemma3AsStored", "gemma3", kGemma3File, "bf16", "as-stored", 4.4, 18},
                      Case{"SmolLm2Int8KvInt8", "smollm2", kSmolLm2File, "int8", "int8", 3.4, 30},
                      Case{"Gemma3Int8KvInt8", "gemma3", kGemma3File, "int8", "int8", 4.4, 18}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(SmolLm2, AnswersTheChatPrompt) {
  TANDEM_FIND_MODEL_OR_SKIP(path, kSmolLm2File);
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, model::Checkpoint::Open(path));
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, model::Tokenizer::Create(checkpoint->tokenizer()));
  const std::vector<TokenId> prompt = tokenizer->Encode(
      "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
      "<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
      "<|im_start|>assistant\n");
  ASSERT_EQ(prompt.size(), 37u);
  ASSERT_OK_AND_ASSIGN(const auto engine, engine::NewCpuEngine(*checkpoint, {}));
  ASSERT_OK_AND_ASSIGN(const auto batch, GreedyBatch::Create(engine.get(), {prompt}));
  const std::vector<int32_t>& stops = checkpoint->stop_token_ids();
  std::vector<TokenId> answer;
  ASSERT_OK(batch->Run([&](size_t, TokenId token) {
    answer.push_back(token);
    return answer.size() < 32 && std::find(stops.begin(), stops.end(), token) == stops.end();
  }));
  EXPECT_EQ(tokenizer->Decode(answer, false), "The capital of France is Paris.<|im_end|>");
}

}  // namespace
}  // namespace tandem::testing
