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
  BlockHasher hasher{BlockKey()};
  std::vector<TokenId> tokens;
  for (int i = 0; i < 37; ++i) tokens.push_back(i * 7919 % 259);
  const BlockHash salt = hasher.Salt("model", "numerics", "tenant");
  const std::vector<BlockHash> hashes = hasher.Blocks(salt, tokens, 16);
  ASSERT_EQ(hashes.size(), 2u);
  const auto span = absl::MakeConstSpan(tokens);
  EXPECT_EQ(hashes[0], hasher.Next(salt, span.subspan(0, 16)));
  EXPECT_EQ(hashes[1], hasher.Next(hashes[0], span.subspan(16, 16)));
}

// A simulation's processes share a memo: names are as without one, also once it forgot them.
TEST(BlockHash, RememberedNamesAreTheSame) {
  const auto memo = std::make_shared<BlockNameMemo>(5);
  BlockHasher plain{BlockKey()}, first{BlockKey().Remembering(memo)},
      second{BlockKey().Remembering(memo)};
  EXPECT_EQ(BlockKey().Remembering(memo).names(), BlockKey().names());
  for (int round = 0; round < 3; ++round) {
    for (int kind = 0; kind < 3; ++kind) {
      std::vector<TokenId> tokens(100, kind);
      tokens[50] += round % 2;
      const BlockHash salt = plain.Salt("model", "numerics", "");
      const auto names = plain.Blocks(salt, tokens, 32);
      EXPECT_EQ(first.Blocks(salt, tokens, 32), names);
      EXPECT_EQ(second.Blocks(salt, tokens, 32), names);
    }
  }
}

// Nodes and routers of different builds compute the same hashes, for every block size. The values
// are of Python's hashlib and hmac.
TEST(BlockHash, MatchesRecordedValues) {
  BlockHasher hasher(BlockKey::FromSecret("fleet"));
  const struct {
    size_t tokens;
    BlockHash hash;
  } known[] = {{1, {0x666f5ebdf0c54a58, 0xd50a744b7ba3f515}},
               {8, {0x8041e57e2bc04606, 0xcc0aa0bb7021c89e}},
               {16, {0x1a7a9359fd890cd9, 0x7d66b70f2ca77a30}},
               {32, {0xb9560507d3195864, 0xedff49b6c00a9b80}},
               {64, {0xb67c158cfdf76067, 0xae784f1747fcfae7}},
               {128, {0x036dbf3462ae706f, 0xba92aeb621ef8338}},
               {256, {0x8257358caa1df71d, 0x56936e8126c52577}},
               {257, {0xba31bf3f513cfb71, 0xc8bd29787c0471b4}},
               {512, {0x4e49864deac57667, 0x8657aef71adf2a9a}}};
  std::vector<TokenId> tokens;
  for (int i = 0; i < 512; ++i) tokens.push_back(i * 7 + 1);
  EXPECT_EQ(BlockKey::FromSecret("fleet").names(), "sha256-1:a8d74228bec91068");
  EXPECT_EQ(hasher.Salt("model", "numerics", "tenant"),
            (BlockHash{0x2bac02207c413638, 0x4b6ae8baf6720e7e}));
  const BlockHash parent = {0x0102030405060708, 0x1112131415161718};
  for (const auto& one : known) {
    EXPECT_EQ(hasher.Next(parent, absl::MakeConstSpan(tokens).first(one.tokens)), one.hash)
        << one.tokens;
  }
}

TEST(BlockHash, DependsOnEveryTokenAndItsPosition) {
  BlockHasher hasher{BlockKey()};
  const BlockHash salt = hasher.Salt("m", "n", "");
  std::vector<TokenId> tokens(32, 5);
  absl::flat_hash_set<BlockHash> seen = {hasher.Blocks(salt, tokens, 16)[1]};
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<TokenId> changed = tokens;
    changed[i] = 6;
    EXPECT_TRUE(seen.insert(hasher.Blocks(salt, changed, 16)[1]).second) << "token " << i;
  }
  // Equal blocks at different places differ: the chain carries the prefix.
  EXPECT_NE(hasher.Blocks(salt, tokens, 16)[0], hasher.Blocks(salt, tokens, 16)[1]);
}

// Without the fleet's secret a client cannot compute names, so it cannot search for two equal ones.
TEST(BlockHash, DependsOnTheFleetsSecret) {
  const BlockKey one = BlockKey::FromSecret("one"), other = BlockKey::FromSecret("other");
  BlockHasher first(one), again(BlockKey::FromSecret("one")), second(other), open{BlockKey()};
  const BlockHash parent = {1, 2};
  const std::vector<TokenId> tokens(16, 5);
  EXPECT_EQ(first.Next(parent, tokens), again.Next(parent, tokens));
  EXPECT_NE(first.Next(parent, tokens), second.Next(parent, tokens));
  EXPECT_NE(first.Next(parent, tokens), open.Next(parent, tokens));
  EXPECT_NE(first.Salt("m", "n", ""), second.Salt("m", "n", ""));
  EXPECT_NE(one.names(), other.names());
  EXPECT_NE(one.names(), BlockKey().names());
}

TEST(BlockHash, SaltPartsDoNotRunTogether) {
  BlockHasher hasher{BlockKey()};
  absl::flat_hash_set<BlockHash> seen = {hasher.Salt("ab", "c", ""), hasher.Salt("a", "bc", ""),
                                         hasher.Salt("abc", "", ""), hasher.Salt("a", "b", "c"),
                                         hasher.Salt("", "", "abc")};
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
