// Goal: a context whose tables of rotary angles no memory holds is refused by name, before any
// table is made.
#include "common/engine/rope_table.h"

#include <gtest/gtest.h>

#include "common/engine/cpu/cpu_engine.h"
#include "common/model/gguf_checkpoint.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/model/gguf_builder.h"

namespace tandem::engine {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int32_t kLongest = 1 << 30;  // that a checkpoint may name

TEST(RopeTableTest, AContextTooLongForItsTablesIsRefused) {
  testing::GgufBuilder b = testing::TinyLlama();
  b.Uint32("llama.context_length", kLongest);
  ASSERT_OK_AND_ASSIGN(const auto checkpoint,
                       model::OpenGgufCheckpoint(model::MappedFile::FromMemory("m", b.Build())));
  CpuEngineOptions options;
  options.threads = 1;
  for (const int64_t context : {int64_t{0}, int64_t{kLongest}}) {
    options.context_tokens = context;
    EXPECT_THAT(NewCpuEngine(*checkpoint, options).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("1073741824 tokens"), HasSubstr("--context-tokens"))));
  }
  options.context_tokens = 4096;
  EXPECT_OK(NewCpuEngine(*checkpoint, options).status());
}

// Layers with tables of their own count, and layers that share one do not.
TEST(RopeTableTest, EveryDifferentTableCounts) {
  model::ModelConfig config;
  config.head_dim = 16;
  config.layers.resize(4);
  // The bound depends on the machine's memory.
  int64_t context = 1;
  while (CheckRopeTables(config, 2 * context).ok()) context *= 2;
  config.layers[1].rope_theta = config.layers[3].rope_theta = 5e5;
  EXPECT_THAT(CheckRopeTables(config, context),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rotary angles")));
  EXPECT_OK(CheckRopeTables(config, context / 2));
}

}  // namespace
}  // namespace tandem::engine
