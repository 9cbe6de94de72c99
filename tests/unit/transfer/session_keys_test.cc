// Goal: the KV plane's ciphers give the published results; no generation and no direction shares a
// key; a sender changes keys at its limits and stops at the last number; a receiver takes each
// number once, at both ends of its window, across any change of keys.
#include "common/transfer/session_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "absl/strings/escaping.h"
#include "common/runtime/random.h"
#include "common/transfer/payload_buffers.h"
#include "tests/testing/status_matchers.h"

namespace tandem::transfer {
namespace {

using ::tandem::testing::StatusIs;
using Part = FrameCipher::Part;

absl::Span<const uint8_t> AsKey(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}
GatherList Pieces(const std::string& bytes, size_t first) {
  const auto all =
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
  return {all.subspan(0, first), all.subspan(first)};
}
ScatterList Whole(std::string& bytes) {
  return {absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())};
}
std::string Hex(absl::Span<const uint8_t> bytes) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}
std::string SealedWith(FrameCipher& cipher, uint64_t sequence) {
  const std::string plain(48, 'k');
  std::string sealed(plain.size(), '\0');
  const auto tag = cipher.Seal({Part::kPayload, sequence}, "", Pieces(plain, 0),
                               reinterpret_cast<std::byte*>(sealed.data()));
  return sealed + std::string(tag.begin(), tag.end());
}
bool OpensWith(FrameCipher& cipher, uint64_t sequence, std::string sealed) {
  const std::string tag = sealed.substr(48);
  sealed.resize(48);
  return cipher.Open({Part::kPayload, sequence}, "", Whole(sealed), tag) &&
         sealed == std::string(48, 'k');
}
SecretKey SecretOf(uint8_t fill) {
  SecretKey key;
  std::memset(key.mutable_bytes().data(), fill, key.bytes().size());
  return key;
}

// McGrew and Viega, "The Galois/Counter Mode of Operation", test case 16.
TEST(FrameCipherTest, GivesThePublishedResult) {
  const std::string key =
      absl::HexStringToBytes("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308");
  const std::string clear = absl::HexStringToBytes("feedfacedeadbeeffeedfacedeadbeefabaddad2");
  const std::string plain = absl::HexStringToBytes(
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
      "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39");
  const FrameCipher::Nonce nonce = {static_cast<Part>(0xcafebabe), 0xfacedbaddecaf888};
  for (size_t first : {size_t{0}, size_t{1}, size_t{16}, size_t{33}}) {
    FrameCipher sealing(FrameCipher::Use::kSeal, AsKey(key));
    std::string sealed(plain.size(), '\0');
    const auto tag = sealing.Seal(nonce, clear, Pieces(plain, first),
                                  reinterpret_cast<std::byte*>(sealed.data()));
    EXPECT_EQ(absl::BytesToHexString(sealed),
              "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
              "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662");
    EXPECT_EQ(Hex(tag), "76fc6ece0f4e1768cddf8853bb2d551b");
    FrameCipher opening(FrameCipher::Use::kOpen, AsKey(key));
    const std::string right(tag.begin(), tag.end());
    std::string opened = sealed;
    EXPECT_FALSE(opening.Open({Part::kHeader, nonce.sequence}, clear, Whole(opened), right));
    opened = sealed;
    EXPECT_FALSE(opening.Open(nonce, "", Whole(opened), right));
    opened = sealed;
    EXPECT_FALSE(opening.Open(nonce, clear, Whole(opened), right.substr(1)));
    opened = sealed;
    EXPECT_TRUE(opening.Open(nonce, clear, Whole(opened), right));
    EXPECT_EQ(opened, plain);
  }
}

// RFC 5869, test case 1 (its first 32 bytes of output).
TEST(HkdfTest, GivesThePublishedResult) {
  const SecretKey root =
      HkdfExtract(absl::HexStringToBytes("000102030405060708090a0b0c"), std::string(22, '\x0b'));
  EXPECT_EQ(Hex(root.bytes()), "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
  EXPECT_EQ(Hex(HkdfExpand(root, absl::HexStringToBytes("f0f1f2f3f4f5f6f7f8f9")).bytes()),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
  // Test case 3: no salt. OpenSSL takes no empty purpose, and nothing here has one.
  EXPECT_EQ(Hex(HkdfExtract("", std::string(22, '\x0b')).bytes()),
            "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04");
}

TEST(SendingKeysTest, ChangesKeysAfterFramesBytesOrTime) {
  const absl::Time start = absl::UnixEpoch();
  const KeyLimits limits = {.bytes_max = 1000, .frames_max = 3, .age_max = absl::Seconds(5)};
  SendingKeys keys(SecretOf(1), limits, start);
  const auto generation = [&](int64_t bytes, absl::Time now) {
    const auto stamp = keys.Next(bytes, now);
    EXPECT_OK(stamp.status());
    return stamp->generation;
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(generation(1, start), 0u);
  EXPECT_EQ(generation(900, start), 1u);  // the fourth frame
  EXPECT_EQ(generation(100, start), 1u);  // the last byte
  EXPECT_EQ(generation(1, start), 2u);    // one more
  EXPECT_EQ(generation(1, start + absl::Seconds(4)), 2u);
  EXPECT_EQ(generation(1, start + absl::Seconds(5)), 3u);
  EXPECT_EQ(generation(5000, start + absl::Seconds(5)), 4u);  // larger than a generation's bytes
}

TEST(SendingKeysTest, GivesEachNumberOnceAndStopsAtTheLast) {
  const KeyLimits limits = {.frames_max = 2, .sequences_max = 7};
  SendingKeys keys(SecretOf(1), limits, absl::UnixEpoch());
  for (uint64_t i = 0; i < 7; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto stamp, keys.Next(1, absl::UnixEpoch()));
    EXPECT_EQ(stamp.sequence, i);
    EXPECT_EQ(stamp.generation, i / 2);
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(keys.Next(1, absl::UnixEpoch()).status(),
                StatusIs(absl::StatusCode::kResourceExhausted, ::testing::HasSubstr("7 frames")));
  }
}

TEST(SessionKeysTest, NoTwoGenerationsShareAKey) {
  const KeyLimits limits = {.frames_max = 1};
  SendingKeys sending(SecretOf(1), limits, absl::UnixEpoch());
  SendingKeys other(SecretOf(2), limits, absl::UnixEpoch());
  std::set<std::string> seen;
  for (int i = 0; i < 20; ++i) {
    for (SendingKeys* keys : {&sending, &other}) {
      EXPECT_TRUE(seen.insert(SealedWith(*keys->Next(1, absl::UnixEpoch())->cipher, 77)).second);
    }
  }
}

TEST(SessionKeysTest, TheReceiverFollowsAndForgets) {
  const KeyLimits limits = {.frames_max = 1};
  SendingKeys sending(SecretOf(1), limits, absl::UnixEpoch());
  ReceivingKeys receiving(SecretOf(1));
  std::vector<std::string> sent;
  for (uint64_t i = 0; i < 6; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto stamp, sending.Next(1, absl::UnixEpoch()));
    sent.push_back(SealedWith(*stamp.cipher, i));
  }
  EXPECT_EQ(receiving.Find(2), nullptr);  // two ahead: no sender is
  EXPECT_EQ(receiving.Find(~uint32_t{0}), nullptr);
  const auto kept = receiving.Find(0);
  for (uint32_t i = 0; i < 6; ++i) {
    ASSERT_NE(receiving.Find(i), nullptr) << i;
    EXPECT_TRUE(OpensWith(*receiving.Find(i), i, sent[i])) << i;
    receiving.Accept(i, i);
  }
  EXPECT_TRUE(OpensWith(*receiving.Find(4), 4, sent[4]));
  EXPECT_EQ(receiving.Find(3), nullptr);
  EXPECT_TRUE(OpensWith(*kept, 0, sent[0]));  // for a payload that is still landing
  EXPECT_FALSE(OpensWith(*kept, 1, sent[1]));
}

TEST(ReplayWindowTest, TakesEachNumberOnce) {
  constexpr uint64_t kNumbers = ReplayWindow::kNumbers;
  ReplayWindow window;
  window.Add(5);
  EXPECT_FALSE(window.Takes(5));
  EXPECT_TRUE(window.Takes(4));
  window.Add(0);
  EXPECT_FALSE(window.Takes(0));
  window.Add(kNumbers);  // 1 is the oldest one now
  EXPECT_FALSE(window.Takes(0));
  EXPECT_TRUE(window.Takes(1));
  EXPECT_FALSE(window.Takes(5));
  window.Add(1);
  window.Add(kNumbers + 5);
  EXPECT_FALSE(window.Takes(5));
  EXPECT_TRUE(window.Takes(6));
  window.Add(10 * kNumbers + 6);  // everything before is behind the window
  EXPECT_FALSE(window.Takes(9 * kNumbers + 6));
  EXPECT_TRUE(window.Takes(9 * kNumbers + 7));
  EXPECT_FALSE(window.Takes(~uint64_t{0}));
}

TEST(ReplayWindowTest, AgreesWithASet) {
  const uint64_t seed = 20261125;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto random = NewSeededRandom(seed);
  ReplayWindow window;
  std::set<uint64_t> seen;
  uint64_t highest = 0;
  for (int i = 0; i < 200'000; ++i) {
    const uint64_t back = random->Below(2 * ReplayWindow::kNumbers);
    const uint64_t number =
        random->Below(3) == 0 ? highest + random->Below(300) : highest - std::min(highest, back);
    const bool fresh =
        seen.count(number) == 0 && (seen.empty() || number + ReplayWindow::kNumbers > highest);
    ASSERT_EQ(window.Takes(number), fresh) << number << " behind " << highest;
    if (!fresh) continue;
    window.Add(number);
    seen.insert(number);
    highest = std::max(highest, number);
  }
}

TEST(PayloadBuffersTest, GivesNoMoreThanItsBytesAndOneAlways) {
  PayloadBuffers buffers(256 << 10);
  PayloadBuffers::Buffer large = buffers.Take(1 << 20);
  ASSERT_NE(large.data, nullptr);
  EXPECT_EQ(buffers.Take(1).data, nullptr);
  buffers.Give(std::move(large));
  std::vector<PayloadBuffers::Buffer> out;
  for (int i = 0; i < 4; ++i) {
    out.push_back(buffers.Take(60'000));
    ASSERT_NE(out.back().data, nullptr);
  }
  EXPECT_EQ(buffers.bytes(), size_t{256} << 10);
  EXPECT_EQ(buffers.Take(1).data, nullptr);
  const std::byte* const last = out.back().data.get();
  buffers.Give(std::move(out.back()));
  EXPECT_EQ(buffers.Take(64 << 10).data.get(), last);
}

}  // namespace
}  // namespace tandem::transfer
