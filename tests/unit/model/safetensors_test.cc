// Goal: safetensors files and shard indexes are read, and damaged ones answered with an error that
// names the tensor, the sizes and the place.
#include "common/model/safetensors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"

namespace tandem::model {
namespace {

using ::tandem::testing::GoldenPath;
using ::tandem::testing::ReadFileOrEmpty;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

std::string File(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string out(reinterpret_cast<const char*>(&size), sizeof(size));
  out += header;
  for (size_t i = 0; i < data_bytes; ++i) out.push_back(static_cast<char>(i));
  return out;
}

absl::StatusOr<std::vector<FileTensor>> Parse(const std::string& bytes) {
  return ParseSafetensors(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

constexpr char kTwoTensors[] =
    R"({"__metadata__":{"format":"pt"},
        "b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},
        "a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})";

TEST(SafetensorsTest, ReadsTensorsInOrderOfData) {
  const std::string bytes = File(kTwoTensors, 14);
  ASSERT_OK_AND_ASSIGN(const std::vector<FileTensor> tensors, Parse(bytes));
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].type, TensorType::kF32);
  EXPECT_THAT(tensors[0].shape, ::testing::ElementsAre(2, 1));
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].data - tensors[0].data, 8);
  EXPECT_EQ(tensors[1].data[0], std::byte{8});
}

TEST(SafetensorsTest, EveryTruncationIsAnError) {
  const std::string bytes = File(kTwoTensors, 14);
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_THAT(Parse(bytes.substr(0, size)).status(), StatusIs(kInvalid, HasSubstr("truncated")))
        << "cut at " << size;
  }
}

TEST(SafetensorsTest, DamageIsNamed) {
  struct Case {
    std::string header;
    absl::StatusCode code;
    std::string message;
  };
  const std::string offsets = R"("data_offsets":[0,8]})";
  const Case cases[] = {
      {"[]", kInvalid, "not a JSON object"},
      {"{\"a\":", kInvalid, "not a JSON object"},
      {std::string(2000, '['), kInvalid, "nests deeper than 64 levels"},
      {R"({"a":5})", kInvalid, "tensor a: entry is not an object"},
      {R"({"a":{"dtype":"F32","shape":[2],)" + offsets + R"(,"a":{}})", kInvalid,
       "key \"a\" occurs twice"},
      {R"({"a":{"dtype":"I64","shape":[1],)" + offsets + "}", kUnimplemented,
       "tensor a: dtype \"I64\""},
      {R"({"a":{"dtype":7,"shape":[1],)" + offsets + "}", kInvalid, "key \"dtype\" is a number"},
      {R"({"a":{"shape":[1],)" + offsets + "}", kUnimplemented, "tensor a: dtype \"\""},
      {R"({"a":{"dtype":"F32","shape":[-2],)" + offsets + "}", kInvalid, "key \"shape\" is not"},
      {R"({"a":{"dtype":"F32","shape":[2.5],)" + offsets + "}", kInvalid, "key \"shape\" is not"},
      {R"({"a":{"dtype":"F32","shape":[0],)" + offsets + "}", kInvalid, "dimension 0"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],)" + offsets + "}", kInvalid,
       "too large for any file"},
      {R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],)" + offsets + "}", kInvalid, "up to 8"},
      {R"({"a":{"dtype":"F32","shape":[3],)" + offsets + "}", kInvalid,
       "F32 of shape [3] takes 12 bytes, the header gives it 8"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", kInvalid, "[8,0]"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[16,24]}})", kInvalid,
       "needs 8 bytes at data offsets [16,24], the file holds 16"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", kInvalid, "tensor a"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", kInvalid, "key \"data_offsets\" is not"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
           "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       kInvalid, "tensor b at data offset 4 overlaps tensor a, which ends at 8"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Parse(File(c.header, 16)).status(), StatusIs(c.code, HasSubstr(c.message)))
        << c.header.substr(0, 200);
  }
  EXPECT_THAT(Parse(std::string(8, '\xff') + "{}").status(),
              StatusIs(kInvalid, HasSubstr("18446744073709551615 bytes, 2 are left")));
}

TEST(ShardIndexTest, NamesEachFileOnce) {
  ASSERT_OK_AND_ASSIGN(
      const ShardIndex index,
      ParseShardIndex(ReadFileOrEmpty(GoldenPath("tiny/llama3/model.safetensors.index.json"))));
  EXPECT_EQ(index.files.size(), 3u);
  EXPECT_EQ(index.tensors.size(), 21u);
}

TEST(ShardIndexTest, DamageIsNamed) {
  for (const char* text : {"", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})"}) {
    EXPECT_THAT(ParseShardIndex(text).status(), StatusIs(kInvalid, HasSubstr("index"))) << text;
  }
  for (const char* file : {"\"../x\"", "\"/etc/passwd\"", "\"\"", "\"..\"", "7", "null"}) {
    EXPECT_THAT(ParseShardIndex(std::string(R"({"weight_map":{"w":)") + file + "}}").status(),
                StatusIs(kInvalid, HasSubstr("tensor w no file name within its folder")))
        << file;
  }
}

}  // namespace
}  // namespace tandem::model
