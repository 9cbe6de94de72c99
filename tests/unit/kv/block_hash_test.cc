// Goal: a block's hash names exactly (salt, all tokens up to its end): it changes with each of
// them, is the same however it is computed, and survives the wire.
#include "common/kv/block_hash.h"

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "tests/testing/status_matchers.h"

namespace tandem::kv {
namespace {

using ::testing::HasSubstr;

TEST(BlockHash, ChainsOverFullBlocksOnly) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < 37; ++i) tokens.push_back(i * 7919 % 259);
  const BlockHash salt = SaltHash("model", "numerics", "tenant");
  const std::vector<BlockHash> hashes = HashBlocks(salt, tokens, 16);
  ASSERT_EQ(hashes.size(), 2u);
  const auto span = absl::MakeConstSpan(tokens);
  EXPECT_EQ(hashes[0], NextBlockHash(salt, span.subspan(0, 16)));
  EXPECT_EQ(hashes[1], NextBlockHash(hashes[0], span.subspan(16, 16)));
}

TEST(BlockHash, EveryTokenAndThePlaceOfEachMatters) {
  const BlockHash salt = SaltHash("m", "n", "");
  std::vector<TokenId> tokens(32, 5);
  absl::flat_hash_set<BlockHash> seen = {HashBlocks(salt, tokens, 16)[1]};
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<TokenId> changed = tokens;
    changed[i] = 6;
    EXPECT_TRUE(seen.insert(HashBlocks(salt, changed, 16)[1]).second) << "token " << i;
  }
  // Equal blocks at different places differ: the chain carries the prefix.
  EXPECT_NE(HashBlocks(salt, tokens, 16)[0], HashBlocks(salt, tokens, 16)[1]);
}

TEST(BlockHash, SaltPartsAreKeptApart) {
  absl::flat_hash_set<BlockHash> seen = {SaltHash("ab", "c", ""), SaltHash("a", "bc", ""),
                                         SaltHash("abc", "", ""), SaltHash("a", "b", "c"),
                                         SaltHash("", "", "abc")};
  EXPECT_EQ(seen.size(), 5u);
}

TEST(BlockHash, BytesAreBigEndianAndCheckedForLength) {
  const std::vector<BlockHash> hashes = {{0x0102030405060708, 0x1112131415161718},
                                         {0x6162636465666768, 0x7172737475767778}};
  const std::string bytes = PackHashes(hashes);
  EXPECT_EQ(bytes,
            "\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x15\x16\x17\x18"
            "abcdefghqrstuvwx");
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockHash> back, UnpackHashes(bytes));
  EXPECT_EQ(back, hashes);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockHash> none, UnpackHashes(""));
  EXPECT_TRUE(none.empty());
  EXPECT_THAT(UnpackHashes(bytes.substr(0, 31)),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 31")));
}

}  // namespace
}  // namespace tandem::kv
