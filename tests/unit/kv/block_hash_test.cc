// Goal: a block's hash names exactly its salt and all tokens up to its end. It changes with each of
// them, does not depend on how it is computed, and survives packing for the wire.
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

// Nodes and routers of different builds compute the same hashes, for every block size.
TEST(BlockHash, MatchesRecordedValues) {
  const struct {
    size_t tokens;
    BlockHash hash;
  } known[] = {{1, {0x3c0b6534cbc9d5c8, 0x83d492507f2535fe}},
               {8, {0x190c5c97582a8021, 0x8ae4dc78c6b77e1f}},
               {16, {0x5e06ba066fa3f485, 0x1713e31889d2f0b8}},
               {32, {0xfbe1fd4c52ca670f, 0x3cc4559e4c77e785}},
               {64, {0x6648928f72d0d5ef, 0xcfe60a06f282a702}},
               {128, {0xcf7e054ad320a3c3, 0xc63964e6ec111255}},
               {256, {0x2d542697ddb383de, 0xb4d05259420167de}},
               {257, {0xdaa0e97d88783563, 0x226bef8370a20b95}},
               {512, {0x48619dca79ad452c, 0x87be900d4c0f7601}}};
  std::vector<TokenId> tokens;
  for (int i = 0; i < 512; ++i) tokens.push_back(i * 7 + 1);
  const BlockHash parent = {0x0102030405060708, 0x1112131415161718};
  for (const auto& one : known) {
    EXPECT_EQ(NextBlockHash(parent, absl::MakeConstSpan(tokens).first(one.tokens)), one.hash)
        << one.tokens;
  }
}

TEST(BlockHash, DependsOnEveryTokenAndItsPosition) {
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

TEST(BlockHash, SaltPartsDoNotRunTogether) {
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
