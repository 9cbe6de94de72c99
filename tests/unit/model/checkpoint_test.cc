// Goal: whole checkpoints open with the right configuration, texts and stop tokens; those with
// something missing, misshapen or unsupported are refused by name; fingerprints tell contents
// apart.
#include "common/model/checkpoint.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/gguf_checkpoint.h"
#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/model/gguf_builder.h"

namespace tandem::model {
namespace {

using ::tandem::testing::GgufBuilder;
using ::tandem::testing::GoldenPath;
using ::tandem::testing::ReadFileOrEmpty;
using ::tandem::testing::StatusIs;
using ::tandem::testing::TinyLlama;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const GgufBuilder& builder) {
  return OpenGgufCheckpoint(MappedFile::FromMemory("memory", builder.Build()));
}

// A folder that goes with the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = ::testing::TempDir() + "/tandem_checkpoint_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  // Copies a committed tiny checkpoint here.
  void CopyTiny(const std::string& name) const {
    std::filesystem::copy(GoldenPath("tiny/" + name), path_);
  }

 private:
  std::string path_;
};

TEST(CheckpointTest, GgufLlamaWithTokenizer) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Checkpoint> checkpoint, Open(TinyLlama()));
  const ModelConfig& config = checkpoint->config();
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.name, "tiny");
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.vocab_size, 6);
  EXPECT_EQ(config.attention_scale, 0.25f);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_EQ(checkpoint->chat_template(), "{{ messages }}");
  EXPECT_THAT(checkpoint->stop_token_ids(), ElementsAre(1, 2));
  EXPECT_EQ(checkpoint->tokenizer().gguf_pre, "smollm");
  EXPECT_EQ(checkpoint->tokenizer().tokens[5], "ab");
  EXPECT_EQ(checkpoint->Find(TensorRole::kOutput, -1), nullptr);
  EXPECT_EQ(checkpoint->Find(TensorRole::kQBias, 0), nullptr);
  EXPECT_EQ(checkpoint->Find(TensorRole::kQ, 1), nullptr);
  EXPECT_EQ(checkpoint->Find(TensorRole::kQ, -2), nullptr);
  const StoredTensor* q = checkpoint->Find(TensorRole::kQ, 0);
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->permuted_head_rows, 16);
  EXPECT_EQ(checkpoint->Find(TensorRole::kV, 0)->permuted_head_rows, 0);
}

TEST(CheckpointTest, FingerprintTellsContentsAndConfigurationApart) {
  const auto fingerprint = [](const std::function<void(GgufBuilder&)>& change) {
    GgufBuilder b = TinyLlama();
    change(b);
    return Open(b).value()->fingerprint();
  };
  const std::string base = fingerprint([](GgufBuilder&) {});
  EXPECT_EQ(base.size(), 16u);
  EXPECT_EQ(base, fingerprint([](GgufBuilder&) {}));
  EXPECT_EQ(base, fingerprint([](GgufBuilder& b) { b.String("general.name", "another name"); }));
  EXPECT_NE(base, fingerprint([](GgufBuilder& b) { b.Float("llama.rope.freq_base", 5000.0f); }));
  EXPECT_NE(base,
            fingerprint([](GgufBuilder& b) { b.Find("blk.0.ffn_down.weight").data[77] ^= 1; }));
}

TEST(CheckpointTest, RopeFactorsComeFromTheFile) {
  GgufBuilder b = TinyLlama();
  b.F32("rope_freqs.weight", {8});
  EXPECT_THAT(Open(b).status(), StatusIs(kInvalid, HasSubstr("rope frequency factor is 0")));
  const float factors[] = {1, 1, 2, 8, 8, 8, 8, 8};
  std::memcpy(b.Find("rope_freqs.weight").data.data(), factors, sizeof(factors));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Checkpoint> checkpoint, Open(b));
  const RopeScaling& scaling = checkpoint->config().layers[0].rope_scaling;
  EXPECT_EQ(scaling.kind, RopeScaling::Kind::kFactors);
  ASSERT_EQ(scaling.frequency_factors.size(), 8u);
  EXPECT_EQ(scaling.frequency_factors[3], 8.0f);
}

// TinyLlama with YaRN of factor 4.
GgufBuilder& YarnLlama(GgufBuilder& b) {
  b.String("llama.rope.scaling.type", "yarn").Float("llama.rope.scaling.factor", 4.0f);
  return b.Uint32("llama.rope.scaling.original_context_length", 16);
}

TEST(CheckpointTest, YarnParametersMayHaveTheirDefaults) {
  for (const float unset : {1.0f, -1.0f}) {
    GgufBuilder b = TinyLlama();
    YarnLlama(b).Float("llama.rope.scaling.yarn_log_multiplier", 0.0f);
    b.Float("llama.rope.scaling.yarn_ext_factor", unset);
    b.Float("llama.rope.scaling.yarn_attn_factor", unset);
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Checkpoint> checkpoint, Open(b));
    const RopeScaling& scaling = checkpoint->config().layers[0].rope_scaling;
    EXPECT_EQ(scaling.kind, RopeScaling::Kind::kYarn);
    EXPECT_DOUBLE_EQ(scaling.attention_factor, 0.1 * std::log(4.0) + 1);
  }
}

// What a change to a valid checkpoint must be answered with.
struct Damage {
  const char* name;
  std::function<void(GgufBuilder&)> apply;
  absl::StatusCode code;
  const char* message;
};

class CheckpointDamageTest : public ::testing::TestWithParam<Damage> {};

TEST_P(CheckpointDamageTest, IsNamed) {
  GgufBuilder b = TinyLlama();
  GetParam().apply(b);
  EXPECT_THAT(Open(b).status(), StatusIs(GetParam().code, HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    All, CheckpointDamageTest,
    ::testing::Values(
        Damage{"NoArchitecture", [](GgufBuilder& b) { b.Remove("general.architecture"); }, kInvalid,
               "general.architecture is missing"},
        Damage{"OtherArchitecture",
               [](GgufBuilder& b) { b.String("general.architecture", "mamba"); }, kUnimplemented,
               "architecture \"mamba\" is not supported"},
        Damage{"NoKey", [](GgufBuilder& b) { b.Remove("llama.block_count"); }, kInvalid,
               "llama.block_count is missing"},
        Damage{"KeyType", [](GgufBuilder& b) { b.String("llama.block_count", "1"); }, kInvalid,
               "llama.block_count is of type string"},
        Damage{"ManyLayers", [](GgufBuilder& b) { b.Uint32("llama.block_count", 4000000); },
               kInvalid, "llama.block_count is 4000000, expected at most 1024"},
        Damage{"Negative",
               [](GgufBuilder& b) {
                 b.Scalar<int32_t>("llama.embedding_length", GgufValueType::kInt32, -5);
               },
               kInvalid, "llama.embedding_length is -5"},
        Damage{"NoHeads", [](GgufBuilder& b) { b.Uint32("llama.attention.head_count", 0); },
               kInvalid, "the number of"},
        Damage{"Experts", [](GgufBuilder& b) { b.Uint32("llama.expert_count", 8); }, kUnimplemented,
               "llama.expert_count = 8"},
        Damage{"Softcap", [](GgufBuilder& b) { b.Float("llama.attn_logit_softcapping", 50.0f); },
               kUnimplemented, "attn_logit_softcapping"},
        Damage{"Split", [](GgufBuilder& b) { b.Uint32("split.count", 3); }, kUnimplemented,
               "one of 3 parts"},
        Damage{"PartialRotation", [](GgufBuilder& b) { b.Uint32("llama.rope.dimension_count", 8); },
               kUnimplemented, "rotated dimensions 8"},
        Damage{"RopeScaling",
               [](GgufBuilder& b) { b.String("llama.rope.scaling.type", "longrope"); },
               kUnimplemented, "longrope"},
        Damage{
            "YarnExtrapolation",
            [](GgufBuilder& b) { YarnLlama(b).Float("llama.rope.scaling.yarn_ext_factor", 0.5f); },
            kUnimplemented, "rope.scaling.yarn_ext_factor = 0.5; only 1 is supported"},
        Damage{"YarnAttention",
               [](GgufBuilder& b) {
                 YarnLlama(b).Float("llama.rope.scaling.yarn_attn_factor", 1.25f);
               },
               kUnimplemented, "rope.scaling.yarn_attn_factor = 1.25; only 1 is supported"},
        Damage{"YarnLogarithm",
               [](GgufBuilder& b) {
                 YarnLlama(b).Float("llama.rope.scaling.yarn_log_multiplier", 0.125f);
               },
               kUnimplemented, "rope.scaling.yarn_log_multiplier = 0.125; only 0 is supported"},
        Damage{"NoEps", [](GgufBuilder& b) { b.Remove("llama.attention.layer_norm_rms_epsilon"); },
               kInvalid, "epsilon is 0"},
        Damage{"LayersDiffer",
               [](GgufBuilder& b) {
                 b.Array<uint32_t>("llama.feed_forward_length", GgufValueType::kUint32, {24, 48});
               },
               kUnimplemented, "llama.feed_forward_length differs from layer to layer"},
        Damage{"NoTensor", [](GgufBuilder& b) { b.RemoveTensor("blk.0.ffn_up.weight"); }, kInvalid,
               "tensor blk.0.ffn_up.weight (up, shape [24, 32]) is missing"},
        Damage{"NoEmbedding", [](GgufBuilder& b) { b.RemoveTensor("token_embd.weight"); }, kInvalid,
               "token_embd.weight"},
        Damage{"Shape",
               [](GgufBuilder& b) {
                 b.Find("blk.0.attn_k.weight").dimensions = {16, 32};
               },
               kInvalid, "tensor blk.0.attn_k.weight (k): expected shape [16, 32], found [32, 16]"},
        Damage{"LeftOver",
               [](GgufBuilder& b) {
                 b.F32("blk.0.ffn_gate_inp.weight", {32, 4});
               },
               kUnimplemented, "tensor blk.0.ffn_gate_inp.weight [4, 32] has no place"},
        Damage{"TwiceTheSame", [](GgufBuilder& b) { b.F32("output_norm.weight", {32}); }, kInvalid,
               "tensor output_norm.weight occurs twice"},
        Damage{"TokenTypes",
               [](GgufBuilder& b) {
                 b.Array<int32_t>("tokenizer.ggml.token_type", GgufValueType::kInt32, {1});
               },
               kInvalid, "tokenizer.ggml.token_type has 1 elements"},
        Damage{"TooManyTokens",
               [](GgufBuilder& b) {
                 b.Strings("tokenizer.ggml.tokens", {"", "", "", "", "", "", ""});
               },
               kInvalid, "7 tokens, the embedding only 6"},
        Damage{
            "LongToken",
            [](GgufBuilder& b) {
              b.Strings("tokenizer.ggml.tokens", {"", "", "", "", "", std::string(1 << 20, 'a')});
            },
            kInvalid, "token 5 has 1048576 bytes, expected at most 4096"},
        Damage{"EosBeyond", [](GgufBuilder& b) { b.Uint32("tokenizer.ggml.eos_token_id", 6); },
               kInvalid, "tokenizer.ggml.eos_token_id is 6, the vocabulary has 6"},
        Damage{"NoTokens", [](GgufBuilder& b) { b.Remove("tokenizer.ggml.tokens"); }, kInvalid,
               "tokenizer.ggml.tokens is missing"}),
    [](const ::testing::TestParamInfo<Damage>& damage) { return damage.param.name; });

TEST(CheckpointTest, PathsThatAreNoCheckpoint) {
  const TemporaryFolder folder;
  EXPECT_THAT(Checkpoint::Open(folder.path() + "/absent.gguf").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent.gguf")));
  EXPECT_THAT(Checkpoint::Open(folder.Write("empty.gguf", "")).status(),
              StatusIs(kInvalid, AllOf(HasSubstr("empty.gguf"), HasSubstr("empty"))));
  EXPECT_THAT(Checkpoint::Open(folder.Write("text.gguf", "hello world")).status(),
              StatusIs(kInvalid, AllOf(HasSubstr("text.gguf"), HasSubstr("not a GGUF file"))));
  EXPECT_THAT(Checkpoint::Open(folder.path()).status(),
              StatusIs(kInvalid, HasSubstr("without config.json")));
}

TEST(CheckpointTest, FolderWithTexts) {
  const TemporaryFolder folder;
  folder.CopyTiny("llama");
  folder.Write("generation_config.json", R"({"eos_token_id": [7, 2]})");
  folder.Write("tokenizer.json", R"({"model": {}})");
  folder.Write("tokenizer_config.json",
               R"({"eos_token": {"content": "<e>"},
                   "added_tokens_decoder": {
                     "5": {"content": "<e>", "special": true},
                     "6": {"content": "<|im_end|>", "special": true},
                     "8": {"content": "<|im_end|>", "special": false},
                     "999999": {"content": "<|eot_id|>", "special": true}},
                   "chat_template": [{"name": "tool", "template": "T"},
                                     {"name": "default", "template": "D"}]})");
  {
    ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(folder.path()));
    EXPECT_THAT(checkpoint->stop_token_ids(), ElementsAre(2, 5, 6, 7));
    EXPECT_EQ(checkpoint->chat_template(), "D");
    EXPECT_EQ(checkpoint->tokenizer().tokenizer_json, R"({"model": {}})");
    EXPECT_THAT(checkpoint->tokenizer().tokenizer_config_json, HasSubstr("added_tokens_decoder"));
  }
  folder.Write("chat_template.jinja", "J");
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(folder.path()));
  EXPECT_EQ(checkpoint->chat_template(), "J");
  folder.Write("generation_config.json", R"({"eos_token_id": [700]})");
  EXPECT_THAT(Checkpoint::Open(folder.path()).status(),
              StatusIs(kInvalid, AllOf(HasSubstr("generation_config.json"), HasSubstr("700"))));
}

TEST(CheckpointTest, ConversationsWithToolsHaveTheirOwnTemplate) {
  const TemporaryFolder folder;
  folder.CopyTiny("llama");
  const auto templates = [&] {
    const auto checkpoint = Checkpoint::Open(folder.path()).value();
    return std::pair(checkpoint->chat_template(), checkpoint->tool_chat_template());
  };
  folder.Write("tokenizer_config.json",
               R"({"chat_template": [{"name": "rag", "template": "R"},
                                     {"name": "tool_use", "template": "T"},
                                     {"name": "default", "template": "D"}]})");
  EXPECT_EQ(templates(), std::pair(std::string("D"), std::string("T")));
  folder.Write("tokenizer_config.json", R"({"chat_template": "S"})");
  EXPECT_EQ(templates(), std::pair(std::string("S"), std::string()));
  folder.Write("tokenizer_config.json",
               R"({"chat_template": [{"name": "tool_use", "template": "T"}]})");
  EXPECT_EQ(templates(), std::pair(std::string("T"), std::string("T")));
  folder.Write("chat_template.jinja", "J");
  EXPECT_EQ(templates(), std::pair(std::string("J"), std::string()));
  std::filesystem::create_directory(folder.path() + "/additional_chat_templates");
  folder.Write("additional_chat_templates/tool_use.jinja", "A");
  EXPECT_EQ(templates(), std::pair(std::string("J"), std::string("A")));
}

TEST(CheckpointTest, GgufNamesATemplateForTools) {
  GgufBuilder b = TinyLlama();
  EXPECT_EQ(Open(b).value()->tool_chat_template(), "");
  b.String("tokenizer.chat_template.tool_use", "T");
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Open(b));
  EXPECT_EQ(checkpoint->tool_chat_template(), "T");
  EXPECT_EQ(checkpoint->chat_template(), "{{ messages }}");
}

// GGUF names one end token; its models write others, too.
TEST(CheckpointTest, GgufStopsAtTheEndOfATextAndOfATurn) {
  GgufBuilder b = TinyLlama();
  b.Strings("tokenizer.ggml.tokens",
            {"<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "a", "<|endoftext|>"});
  b.Array<int32_t>("tokenizer.ggml.token_type", GgufValueType::kInt32, {3, 3, 3, 3, 1, 1});
  b.Strings("tokenizer.ggml.merges", {}).Uint32("tokenizer.ggml.eos_token_id", 0);
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Open(b));
  EXPECT_THAT(checkpoint->stop_token_ids(), ElementsAre(0, 1, 2, 3));
}

// Some published files name a padding token beyond the vocabulary.
TEST(CheckpointTest, GgufMayNameTokensThatAnswersDoNotNeed) {
  GgufBuilder b = TinyLlama();
  b.Uint32("tokenizer.ggml.padding_token_id", 6).Uint32("tokenizer.ggml.unknown_token_id", ~0u);
  {
    ASSERT_OK_AND_ASSIGN(const auto checkpoint, Open(b));
    EXPECT_EQ(checkpoint->tokenizer().padding_token_id, std::nullopt);
    EXPECT_EQ(checkpoint->tokenizer().unknown_token_id, std::nullopt);
  }
  b.Uint32("tokenizer.ggml.padding_token_id", 5).Uint32("tokenizer.ggml.unknown_token_id", 0);
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Open(b));
  EXPECT_EQ(checkpoint->tokenizer().padding_token_id, 5);
  EXPECT_EQ(checkpoint->tokenizer().unknown_token_id, 0);
}

// Values of this depth would overflow the stack where they are copied.
TEST(CheckpointTest, FilesThatNestTooDeepAreRefused) {
  const auto nested = [](const char* key, size_t depth) {
    return absl::StrCat("\"", key, "\": ", std::string(depth, '['), 2, std::string(depth, ']'));
  };
  for (const std::string name :
       {"config.json", "generation_config.json", "tokenizer_config.json"}) {
    const TemporaryFolder folder;
    folder.CopyTiny("llama");
    const std::string before = ReadFileOrEmpty(folder.path() + "/" + name);
    std::string text = before.empty() ? "{}" : before;
    const size_t end = text.rfind('}');
    const std::string comma = before.empty() ? "" : ",";
    folder.Write(name, text.substr(0, end) + comma + nested("x", 300'000) + "}");
    EXPECT_THAT(
        Checkpoint::Open(folder.path()).status(),
        StatusIs(kInvalid, AllOf(HasSubstr(name), HasSubstr("nests deeper than 64 levels"))));
    // Brackets within strings do not count, nor do many that are closed.
    std::string flat = absl::StrCat(R"("x": ")", std::string(100, '['), R"(\"[", "y": [)");
    for (int i = 0; i < 100; ++i) absl::StrAppend(&flat, i == 0 ? "" : ",", "[[]]");
    folder.Write(name, absl::StrCat(text.substr(0, end), comma, flat, "]}"));
    EXPECT_OK(Checkpoint::Open(folder.path()).status()) << name;
  }
  const TemporaryFolder folder;
  folder.CopyTiny("llama");
  folder.Write("generation_config.json", absl::StrCat("{", nested("eos_token_id", 2), "}"));
  EXPECT_THAT(Checkpoint::Open(folder.path()).status(),
              StatusIs(kInvalid, HasSubstr("key \"eos_token_id\" holds array")));
}

TEST(CheckpointTest, DamagedFolders) {
  const TemporaryFolder folder;
  folder.CopyTiny("llama3");
  const std::string shard = "model-00002-of-00003.safetensors";
  const std::string whole = ReadFileOrEmpty(folder.path() + "/" + shard);
  folder.Write(shard, whole.substr(0, whole.size() - 100));
  EXPECT_THAT(Checkpoint::Open(folder.path()).status(),
              StatusIs(kInvalid, AllOf(HasSubstr(shard), HasSubstr("truncated"))));
  std::filesystem::remove(folder.path() + "/" + shard);
  EXPECT_THAT(Checkpoint::Open(folder.path()).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(shard)));
  folder.Write(shard, whole);
  std::filesystem::copy_file(folder.path() + "/model-00001-of-00003.safetensors",
                             folder.path() + "/model-00003-of-00003.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(Checkpoint::Open(folder.path()).status(),
              StatusIs(kInvalid, HasSubstr("should be in model-00003-of-00003.safetensors")));
  std::filesystem::remove(folder.path() + "/model.safetensors.index.json");
  EXPECT_THAT(Checkpoint::Open(folder.path()).status(),
              StatusIs(kInvalid, HasSubstr("neither model.safetensors nor")));
}

// The same weights from a folder and from GGUF are the same canonical matrices.
TEST(CheckpointTest, GgufAndFolderGiveTheSameRows) {
  for (const std::string name : {"llama", "llama3", "qwen2", "qwen3", "gemma3"}) {
    ASSERT_OK_AND_ASSIGN(const auto folder, Checkpoint::Open(GoldenPath("tiny/" + name)));
    ASSERT_OK_AND_ASSIGN(
        const auto gguf,
        Checkpoint::Open(GoldenPath(absl::StrCat("tiny/", name, "/", name, ".gguf"))));
    int compared = 0;
    for (int layer = -1; layer < folder->config().num_layers; ++layer) {
      for (int role = 0; role <= static_cast<int>(TensorRole::kDown); ++role) {
        const StoredTensor* a = folder->Find(static_cast<TensorRole>(role), layer);
        const StoredTensor* b = gguf->Find(static_cast<TensorRole>(role), layer);
        ASSERT_EQ(a == nullptr, b == nullptr) << name << " " << layer << " " << role;
        if (a == nullptr) continue;
        ASSERT_EQ(a->rows * a->columns, b->rows * b->columns);
        std::vector<float> x(static_cast<size_t>(a->rows * a->columns)), y(x.size());
        ReadRows(*a, 0, a->rows, absl::MakeSpan(x));
        ReadRows(*b, 0, b->rows, absl::MakeSpan(y));
        EXPECT_EQ(x, y) << name << " " << b->name;
        ++compared;
      }
    }
    EXPECT_GT(compared, 10);
  }
}

TEST(RealModelTest, SmolLm2Opens) {
  TANDEM_FIND_MODEL_OR_SKIP(path, ::tandem::testing::kSmolLm2File);
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(path));
  const ModelConfig& c = checkpoint->config();
  EXPECT_EQ(c.architecture, "llama");
  EXPECT_THAT((std::vector<int32_t>{c.num_layers, c.hidden_size, c.num_heads, c.num_kv_heads,
                                    c.head_dim, c.ffn_size, c.vocab_size, c.context_tokens}),
              ElementsAre(30, 576, 9, 3, 64, 1536, 49152, 8192));
  EXPECT_EQ(c.layers[29].rope_theta, 100000.0);
  EXPECT_EQ(c.rms_norm_eps, 1e-5f);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_THAT(checkpoint->stop_token_ids(), ElementsAre(0, 2));
  EXPECT_THAT(checkpoint->chat_template(), HasSubstr("<|im_start|>"));
  EXPECT_EQ(checkpoint->tokenizer().gguf_pre, "smollm");
  EXPECT_EQ(checkpoint->tokenizer().merges.size(), 48900u);
  EXPECT_EQ(checkpoint->Find(TensorRole::kDown, 29)->type, TensorType::kQ4_1);
  EXPECT_EQ(checkpoint->Find(TensorRole::kTokenEmbedding, -1)->type, TensorType::kQ8_0);
  ASSERT_OK_AND_ASSIGN(const auto again, Checkpoint::Open(path));
  EXPECT_EQ(checkpoint->fingerprint(), again->fingerprint());
}

TEST(RealModelTest, Gemma3Opens) {
  TANDEM_FIND_MODEL_OR_SKIP(path, ::tandem::testing::kGemma3File);
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(path));
  const ModelConfig& c = checkpoint->config();
  EXPECT_EQ(c.architecture, "gemma3");
  EXPECT_THAT((std::vector<int32_t>{c.num_layers, c.hidden_size, c.num_heads, c.num_kv_heads,
                                    c.head_dim, c.ffn_size, c.vocab_size, c.context_tokens}),
              ElementsAre(18, 640, 4, 1, 256, 2048, 262144, 32768));
  for (size_t i = 0; i < 18; ++i) {
    EXPECT_EQ(c.layers[i].sliding_window, i % 6 == 5 ? 0 : 512) << i;
    EXPECT_EQ(c.layers[i].rope_theta, i % 6 == 5 ? 1000000.0 : 10000.0) << i;
  }
  EXPECT_EQ(c.attention_scale, 1.0f / 16);
  EXPECT_FLOAT_EQ(c.embedding_scale, std::sqrt(640.0f));
  EXPECT_TRUE(c.qk_norm && c.sandwich_norms && c.tied_embeddings);
  EXPECT_THAT(checkpoint->stop_token_ids(), ElementsAre(1, 106));
  EXPECT_EQ(checkpoint->tokenizer().gguf_model, "llama");
  EXPECT_EQ(checkpoint->tokenizer().add_bos, std::optional<bool>(true));
  EXPECT_EQ(checkpoint->tokenizer().scores.size(), 262144u);
}

// A real file cut anywhere is refused, and says which tensor no longer fits once the directory is
// whole.
TEST(RealModelTest, CutSmolLm2IsRefused) {
  TANDEM_FIND_MODEL_OR_SKIP(path, ::tandem::testing::kSmolLm2File);
  ASSERT_OK_AND_ASSIGN(const auto file, MappedFile::Open(path));
  for (const size_t denominator : {2, 3, 50, 100, 1000, 100000}) {
    const size_t size = file->bytes().size() / denominator;
    const std::string bytes(reinterpret_cast<const char*>(file->bytes().data()), size);
    EXPECT_THAT(OpenGgufCheckpoint(MappedFile::FromMemory("cut", bytes)).status(),
                StatusIs(kInvalid, HasSubstr("truncated")))
        << size;
  }
  const size_t size = file->bytes().size() - 1;
  const std::string bytes(reinterpret_cast<const char*>(file->bytes().data()), size);
  EXPECT_THAT(OpenGgufCheckpoint(MappedFile::FromMemory("cut", bytes)).status(),
              StatusIs(kInvalid, AllOf(HasSubstr("tensor "), HasSubstr("needs"),
                                       HasSubstr(absl::StrCat(size, " bytes")))));
}

}  // namespace
}  // namespace tandem::model
