// Goal: tags are HMAC-SHA256; they differ by secret, purpose and bytes; a changed tag fails the
// check.
#include "common/base/keyed_tag.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

TEST(KeyedTag, IsHmacSha256OfPurposeAndBytes) {
  // RFC 4231, case 2: key "Jefe", data "what do ya want for nothing?". With the purpose "what" a
  // zero byte takes the place of the first space, so the tag must differ.
  const std::string published =
      absl::HexStringToBytes("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_NE(KeyedTag("Jefe", "what", "do ya want for nothing?"), published);
  // Computed once with Python's hmac over "what\0do ya want for nothing?".
  EXPECT_EQ(absl::BytesToHexString(KeyedTag("Jefe", "what", "do ya want for nothing?")),
            "265094f2911ca60070dba3bf45b4f3d9cce6a2d7c824f73fd7e2a27b9fdb899e");
}

TEST(KeyedTag, DiffersBySecretPurposeAndBytes) {
  const std::string tag = KeyedTag("secret", "purpose", "bytes");
  ASSERT_EQ(tag.size(), kKeyedTagBytes);
  EXPECT_TRUE(IsKeyedTag(tag, "secret", "purpose", "bytes"));
  EXPECT_FALSE(IsKeyedTag(tag, "Secret", "purpose", "bytes"));
  EXPECT_FALSE(IsKeyedTag(tag, "", "purpose", "bytes"));
  EXPECT_FALSE(IsKeyedTag(tag, "secret", "purposeb", "ytes"));
  EXPECT_FALSE(IsKeyedTag(tag, "secret", "purpose", "byte"));
  for (size_t bit = 0; bit < 8 * tag.size(); ++bit) {
    std::string changed = tag;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(IsKeyedTag(changed, "secret", "purpose", "bytes")) << "bit " << bit;
  }
  EXPECT_FALSE(IsKeyedTag("", "secret", "purpose", "bytes"));
  EXPECT_FALSE(IsKeyedTag(absl::StrCat(tag, "x"), "secret", "purpose", "bytes"));
}

}  // namespace
}  // namespace tandem
