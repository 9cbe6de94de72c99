// Goal: on SmolLM2's vocabulary the tokens allowed under an expression or a grammar are exactly
// those that another implementation (xgrammar) allows, at many positions of many constraints.
// scripts/make_goldens/guided_masks.py made the expected masks.
#include <fstream>

#include "common/guided/compile.h"
#include "common/guided/constraint.h"
#include "common/model/checkpoint.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"
#include "zlib.h"

namespace tandem::guided {
namespace {

TEST(MaskOracle, AllowsWhatXgrammarAllows) {
  TANDEM_FIND_MODEL_OR_SKIP(path, testing::kSmolLm2File);
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, model::Checkpoint::Open(path));
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, model::Tokenizer::Create(checkpoint->tokenizer()));
  const auto vocabulary =
      Vocabulary::FromTokenizer(*tokenizer, checkpoint->config().vocab_size, {});
  std::ifstream in(testing::GoldenPath("guided/masks.jsonl"));
  int places = 0;
  for (std::string line; std::getline(in, line); ++places) {
    SCOPED_TRACE(line);
    const nlohmann::json golden = nlohmann::json::parse(line);
    using Kind = request::GuidedParams::Kind;
    const Kind kind = golden["kind"] == "regex" ? Kind::kRegex : Kind::kGrammar;
    auto program = Compile({.kind = kind, .text = golden["text"]}, vocabulary->token_bytes_max());
    ASSERT_OK(program.status());
    Constraint constraint(*std::move(program), vocabulary);
    auto place = constraint.Start();
    ASSERT_TRUE(constraint.Advance(place, golden["prefix"].get<std::string>()));
    ASSERT_OK_AND_ASSIGN(const auto mask, constraint.Mask(place));
    std::vector<int32_t> ids;
    for (TokenId id = 0; id < vocabulary->size(); ++id) {
      if ((mask->words[static_cast<size_t>(id) / 32] >> (id % 32)) & 1) ids.push_back(id);
    }
    EXPECT_EQ(static_cast<int64_t>(ids.size()), golden["count"].get<int64_t>());
    const auto crc = crc32(0, reinterpret_cast<const Bytef*>(ids.data()),
                           static_cast<uInt>(ids.size() * sizeof(int32_t)));
    EXPECT_EQ(static_cast<int64_t>(crc), golden["crc32"].get<int64_t>());
  }
  EXPECT_GT(places, 50);
}

}  // namespace
}  // namespace tandem::guided
