// Goal: GGUF structure is read for every value type, and every kind of damage to a file gives an
// error that names the place, the expectation and the finding.
#include "common/model/gguf.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/testing/status_matchers.h"
#include "tests/unit/model/gguf_builder.h"

namespace tandem::model {
namespace {

using ::tandem::testing::GgufBuilder;
using ::tandem::testing::StatusIs;
using ::tandem::testing::TinyLlama;
using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<GgufFile> Parse(const std::string& bytes) {
  return GgufFile::Parse(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

TEST(GgufTest, ReadsEveryValueType) {
  GgufBuilder b;
  b.Scalar<uint8_t>("u8", GgufValueType::kUint8, 200)
      .Scalar<int8_t>("i8", GgufValueType::kInt8, -3);
  b.Scalar<uint16_t>("u16", GgufValueType::kUint16, 60000);
  b.Scalar<int16_t>("i16", GgufValueType::kInt16, -300);
  b.Uint32("u32", 4000000000u).Scalar<int32_t>("i32", GgufValueType::kInt32, -70000);
  b.Scalar<uint64_t>("u64", GgufValueType::kUint64, uint64_t{1} << 40);
  b.Scalar<int64_t>("i64", GgufValueType::kInt64, -(int64_t{1} << 40));
  b.Float("f32", 0.5f).Scalar<double>("f64", GgufValueType::kFloat64, 0.1);
  b.Scalar<uint8_t>("yes", GgufValueType::kBool, 1).String("text", std::string("a\0b", 3));
  b.Strings("texts", {"", "x", "yz"});
  b.Array<float>("floats", GgufValueType::kFloat32, {1.5f, -2.0f});
  b.Array<uint8_t>("bools", GgufValueType::kBool, {1, 0, 1});
  const std::string bytes = b.Build();
  ASSERT_OK_AND_ASSIGN(const GgufFile file, Parse(bytes));
  const auto integer = [&](const char* key) { return file.FindInteger(key).value().value(); };
  EXPECT_EQ(integer("u8"), 200);
  EXPECT_EQ(integer("i8"), -3);
  EXPECT_EQ(integer("u16"), 60000);
  EXPECT_EQ(integer("i16"), -300);
  EXPECT_EQ(integer("u32"), 4000000000);
  EXPECT_EQ(integer("i32"), -70000);
  EXPECT_EQ(integer("u64"), int64_t{1} << 40);
  EXPECT_EQ(integer("i64"), -(int64_t{1} << 40));
  EXPECT_EQ(file.FindFloat("f32").value().value(), 0.5);
  EXPECT_EQ(file.FindFloat("f64").value().value(), 0.1);
  EXPECT_EQ(file.FindFloat("u8").value().value(), 200.0);
  EXPECT_TRUE(file.FindBool("yes").value().value());
  EXPECT_EQ(file.FindString("text").value().value(), std::string("a\0b", 3));
  EXPECT_THAT(file.FindStrings("texts").value().value(), ::testing::ElementsAre("", "x", "yz"));
  EXPECT_THAT(file.FindFloats("floats").value().value(), ::testing::ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(file.FindIntegers("bools").value().value(), ::testing::ElementsAre(1, 0, 1));
  EXPECT_FALSE(file.FindInteger("absent").value().has_value());
  EXPECT_THAT(file.FindInteger("text"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("text"), HasSubstr("string"), HasSubstr("integer"))));
  EXPECT_THAT(file.FindStrings("floats"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("floats")));
}

TEST(GgufTest, ReadsVersion2AndNestedArrays) {
  GgufBuilder b;
  b.version = 2;
  std::string nested;
  GgufBuilder::Append(nested, GgufValueType::kArray);
  GgufBuilder::Append<uint64_t>(nested, 2);
  for (int i = 0; i < 2; ++i) {
    GgufBuilder::Append(nested, GgufValueType::kUint8);
    GgufBuilder::Append<uint64_t>(nested, 3);
    nested += "abc";
  }
  b.Raw("nested", static_cast<uint32_t>(GgufValueType::kArray), nested).Uint32("after", 7);
  const std::string bytes = b.Build();
  ASSERT_OK_AND_ASSIGN(const GgufFile file, Parse(bytes));
  EXPECT_EQ(file.FindInteger("after").value().value(), 7);
}

TEST(GgufTest, FindsTensors) {
  const std::string bytes = TinyLlama().Build();
  ASSERT_OK_AND_ASSIGN(const GgufFile file, Parse(bytes));
  ASSERT_EQ(file.tensors().size(), 11u);
  const GgufTensor& q = file.tensors()[3];
  EXPECT_EQ(q.name, "blk.0.attn_q.weight");
  EXPECT_THAT(q.dimensions, ::testing::ElementsAre(32, 32));
  EXPECT_EQ(q.size_bytes, 4096u);
  float second = 0;
  std::memcpy(&second, bytes.data() + q.offset + sizeof(float), sizeof(float));
  EXPECT_EQ(second, 1.0f / 64);
}

// Whatever the cut, an error; and it says "truncated" once the cut is beyond the magic number.
TEST(GgufTest, EveryTruncationIsAnError) {
  const std::string bytes = TinyLlama().Build();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const absl::Status status = Parse(bytes.substr(0, size)).status();
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("truncated")))
        << "cut at " << size << " of " << bytes.size();
  }
}

// What damage to a valid file must be answered with.
struct Damage {
  const char* name;
  std::function<void(GgufBuilder&)> apply;
  absl::StatusCode code;
  const char* message;
};

class GgufDamageTest : public ::testing::TestWithParam<Damage> {};

TEST_P(GgufDamageTest, IsNamed) {
  GgufBuilder b = TinyLlama();
  GetParam().apply(b);
  EXPECT_THAT(Parse(b.Build()).status(), StatusIs(GetParam().code, HasSubstr(GetParam().message)));
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
constexpr auto kArrayType = static_cast<uint32_t>(GgufValueType::kArray);

// The payload of an array header that announces `count` elements of `type` and brings none.
std::string EmptyArray(GgufValueType type, uint64_t count) {
  std::string payload;
  GgufBuilder::Append(payload, type);
  GgufBuilder::Append(payload, count);
  return payload;
}

INSTANTIATE_TEST_SUITE_P(
    All, GgufDamageTest,
    ::testing::Values(
        Damage{"Magic", [](GgufBuilder& b) { b.magic = 0x12345678; }, kInvalid, "not a GGUF file"},
        Damage{"Version1", [](GgufBuilder& b) { b.version = 1; }, kUnimplemented, "version 1"},
        Damage{"Version4", [](GgufBuilder& b) { b.version = 4; }, kUnimplemented, "version 4"},
        Damage{"BigEndian", [](GgufBuilder& b) { b.version = 3u << 24; }, kUnimplemented,
               "big-endian"},
        Damage{"ManyTensors", [](GgufBuilder& b) { b.extra_tensors = uint64_t{1} << 60; }, kInvalid,
               "more than the"},
        Damage{"ManyValues", [](GgufBuilder& b) { b.extra_values = ~uint64_t{0} >> 2; }, kInvalid,
               "more than the"},
        Damage{"ValueType", [](GgufBuilder& b) { b.Raw("k", 13, "x"); }, kInvalid,
               "metadata key k at offset"},
        Damage{"HugeArray",
               [](GgufBuilder& b) {
                 b.Raw("k", kArrayType, EmptyArray(GgufValueType::kFloat64, ~uint64_t{0}));
               },
               kInvalid, "metadata key k at offset"},
        Damage{"HugeStringArray",
               [](GgufBuilder& b) {
                 b.Raw("k", kArrayType, EmptyArray(GgufValueType::kString, uint64_t{1} << 61));
               },
               kInvalid, "metadata key k at offset"},
        Damage{"HugeString",
               [](GgufBuilder& b) {
                 std::string payload;
                 GgufBuilder::Append(payload, ~uint64_t{0});
                 b.Raw("k", static_cast<uint32_t>(GgufValueType::kString), payload);
               },
               kInvalid, "metadata key k at offset"},
        Damage{"DuplicateKey", [](GgufBuilder& b) { b.Duplicate("general.name"); }, kInvalid,
               "metadata key general.name occurs twice"},
        Damage{"Alignment", [](GgufBuilder& b) { b.Uint32("general.alignment", 24); }, kInvalid,
               "general.alignment is 24"},
        Damage{"AlignmentZero", [](GgufBuilder& b) { b.Uint32("general.alignment", 0); }, kInvalid,
               "general.alignment is 0"},
        Damage{"TensorType", [](GgufBuilder& b) { b.Find("token_embd.weight").type = 10; },
               kUnimplemented, "tensor token_embd.weight at offset"},
        Damage{"TensorTypeName", [](GgufBuilder& b) { b.Find("token_embd.weight").type = 10; },
               kUnimplemented, "type 10 (Q2_K) is not supported"},
        Damage{"TensorTypeUnknown", [](GgufBuilder& b) { b.Find("token_embd.weight").type = 4000; },
               kUnimplemented, "4000 (unknown)"},
        Damage{"NoDimension",
               [](GgufBuilder& b) { b.Find("token_embd.weight").dimensions.clear(); }, kInvalid,
               "0 dimensions"},
        Damage{"FiveDimensions",
               [](GgufBuilder& b) {
                 b.Find("token_embd.weight").dimensions = {1, 1, 1, 1, 1};
               },
               kInvalid, "5 dimensions"},
        Damage{"ZeroDimension",
               [](GgufBuilder& b) {
                 b.Find("token_embd.weight").dimensions = {32, 0};
               },
               kInvalid, "dimension 1 is 0"},
        Damage{"ProductOverflows",
               [](GgufBuilder& b) {
                 b.Find("token_embd.weight").dimensions = {uint64_t{1} << 33, uint64_t{1} << 33};
               },
               kInvalid, "too large for any file"},
        Damage{"HalfABlock",
               [](GgufBuilder& b) {
                 b.Find("token_embd.weight").dimensions = {48, 4};
                 b.Find("token_embd.weight").type = 8;
               },
               kInvalid, "rows of 48 elements, expected a multiple of 32 for type Q8_0"},
        Damage{"BeyondEnd",
               [](GgufBuilder& b) {
                 b.Find("token_embd.weight").dimensions = {32, 60000};
               },
               kInvalid, "tensor token_embd.weight needs 7680000 bytes from data offset 0"},
        Damage{"OffsetBeyondEnd",
               [](GgufBuilder& b) { b.Find("output_norm.weight").offset = int64_t{1} << 62; },
               kInvalid, "holds 0 of them"},
        Damage{"Unaligned", [](GgufBuilder& b) { b.Find("output_norm.weight").offset = 20; },
               kInvalid, "data offset 20 is not a multiple of 32"},
        Damage{"Overlap", [](GgufBuilder& b) { b.Find("output_norm.weight").offset = 32; },
               kInvalid, "overlaps tensor"}),
    [](const ::testing::TestParamInfo<Damage>& damage) { return damage.param.name; });

TEST(GgufTest, DeeplyNestedArraysAreRefused) {
  std::string payload;
  for (int i = 0; i < 100; ++i) payload += EmptyArray(GgufValueType::kArray, 1);
  GgufBuilder b;
  b.Raw("deep", kArrayType, payload);
  EXPECT_THAT(Parse(b.Build()).status(), StatusIs(kInvalid, HasSubstr("nested deeper")));
}

}  // namespace
}  // namespace tandem::model
