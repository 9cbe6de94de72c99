// Goal: a model that is not there, or whose file is cut short or damaged, ends a node and a router
// with exit code 1 and a message that names the path and the tensor, offset and sizes at fault.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/testing/models.h"
#include "tests/testing/program_run.h"

namespace tandem::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class ModelFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/tandem_model_files_" + std::to_string(::getpid());
    std::filesystem::create_directories(folder_);
    whole_ = ReadFileOrEmpty(GoldenPath("tiny/llama/llama.gguf"));
    ASSERT_GT(whole_.size(), 100'000u);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  // Every program that reads models ends with exit code 1 and one line that contains `named`.
  void ExpectRefused(const std::string& model, const std::vector<std::string>& named) {
    for (const char* program : {"tandem-router", "tandem-prefill-node", "tandem-decode-node"}) {
      std::vector<std::string> words = {program, "--model=" + model};
      if (words[0] == "tandem-router") {
        words.insert(words.end(), {"--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0"});
      } else {
        words.insert(words.end(), {"--kv-blocks=8", "--threads=1"});
      }
      const ProgramRun run = RunProgram(words);
      EXPECT_EQ(run.exit_code, 1) << run.output;
      const size_t at = run.output.find(words[0] + ": ");
      ASSERT_NE(at, std::string::npos) << run.output;
      const std::string message = run.output.substr(at);
      for (const std::string& text : named) EXPECT_THAT(message, HasSubstr(text)) << program;
    }
  }

  std::string folder_;
  std::string whole_;
};

TEST_F(ModelFiles, UnknownNamesAndPaths) {
  ExpectRefused("smollm3", {"'smollm3'", "no such file", "smollm2, gemma3"});
  ExpectRefused("/no/such/model.gguf", {"'/no/such/model.gguf'", "no such file"});
  for (const char* program : {"tandem-router", "tandem-decode-node"}) {
    const ProgramRun run = RunProgram({program, "--model=smollm2"}, {{"TANDEM_MODELS", folder_}});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_THAT(run.output, AllOf(HasSubstr("smollm2 is not at " + folder_),
                                  HasSubstr("scripts/fetch_model.py smollm2")));
  }
}

TEST_F(ModelFiles, FilesThatAreCutShort) {
  // In the tensors' data: the tensor, what it needs and what the file holds.
  const std::string half = Write("half.gguf", whole_.substr(0, whole_.size() / 2));
  ExpectRefused(half, {half, "truncated", "tensor ", "bytes from data offset",
                       std::to_string(whole_.size() / 2) + " bytes"});
  const std::string last = Write("last.gguf", whole_.substr(0, whole_.size() - 64));
  ExpectRefused(last, {last, "truncated", "tensor "});
  // In the directory.
  const std::string directory = Write("directory.gguf", whole_.substr(0, 300));
  ExpectRefused(directory, {directory, "truncated"});
  ExpectRefused(Write("empty.gguf", ""), {"empty.gguf"});
}

TEST_F(ModelFiles, FilesThatAreDamaged) {
  ExpectRefused(Write("text.gguf", std::string(4096, 'x')), {"text.gguf", "not a GGUF file"});

  std::string version = whole_;
  version[4] = 77;
  ExpectRefused(Write("version.gguf", version), {"version 77", "2 and 3"});

  std::string counts = whole_;
  counts.replace(8, 8, std::string(8, '\x7f'));
  ExpectRefused(Write("counts.gguf", counts), {"counts.gguf", "truncated or corrupt", "tensors"});

  const std::string tensor = "blk.0.attn_q.weight";
  const size_t at = whole_.find(tensor);
  ASSERT_NE(at, std::string::npos);
  std::string renamed = whole_;
  renamed[at + 11] = 'x';
  ExpectRefused(Write("renamed.gguf", renamed), {"renamed.gguf", tensor});

  // After the name: 4 bytes number of dimensions, 8 each, 4 bytes type, 8 bytes offset.
  const size_t dimensions = at + tensor.size();
  std::string shape = whole_;
  shape[dimensions + 4] ^= 0x60;
  ExpectRefused(Write("shape.gguf", shape), {"shape.gguf", "tensor " + tensor});
  std::string type = whole_;
  type[dimensions + 4 + 16] = 99;
  ExpectRefused(Write("type.gguf", type), {"tensor " + tensor, "type 99", "offset"});
  std::string offset = whole_;
  offset[dimensions + 4 + 16 + 4 + 5] = 1;  // 2^40
  ExpectRefused(Write("offset.gguf", offset),
                {"tensor " + tensor, "bytes from data offset", "1099511"});
}

TEST_F(ModelFiles, FoldersThatAreNoCheckpoints) {
  ExpectRefused(folder_, {folder_, "config.json"});
  Write("damaged/config.json", "{\"model_type\": ");
  ExpectRefused(folder_ + "/damaged", {folder_ + "/damaged", "config.json"});
  Write("unknown/config.json", "{\"model_type\": \"mamba\", \"architectures\": [\"Mamba\"]}");
  ExpectRefused(folder_ + "/unknown", {folder_ + "/unknown", "amba"});

  const std::string tiny = GoldenPath("tiny/llama/");
  Write("cut/config.json", ReadFileOrEmpty(tiny + "config.json"));
  const std::string weights = ReadFileOrEmpty(tiny + "model.safetensors");
  Write("cut/model.safetensors", weights.substr(0, weights.size() / 2));
  ExpectRefused(folder_ + "/cut", {"model.safetensors", "tensor ", "bytes"});
}

TEST_F(ModelFiles, Fp8OfAnotherKindOrWithoutItsScale) {
  const std::string tiny = GoldenPath("tiny/llama_fp8_tensor/");
  const std::string weights = ReadFileOrEmpty(tiny + "model.safetensors");
  std::string config = ReadFileOrEmpty(tiny + "config.json");
  const std::string scale = "model.layers.1.mlp.up_proj.weight_scale";
  const size_t at = weights.find(scale);
  ASSERT_NE(at, std::string::npos);
  std::string renamed = weights;
  renamed[at + scale.size() - 1] = 'x';
  Write("bare/config.json", config);
  Write("bare/model.safetensors", renamed);
  ExpectRefused(folder_ + "/bare",
                {folder_ + "/bare", "model.layers.1.mlp.up_proj.weight", "without a scale"});

  const std::string method = "\"quant_method\": \"fp8\"";
  ASSERT_NE(config.find(method), std::string::npos);
  config.replace(config.find(method), method.size(), "\"quant_method\": \"gptq\"");
  Write("gptq/config.json", config);
  Write("gptq/model.safetensors", weights);
  ExpectRefused(folder_ + "/gptq", {"config.json", "\"gptq\" is not supported", "fbgemm_fp8"});
}

}  // namespace
}  // namespace tandem::testing
