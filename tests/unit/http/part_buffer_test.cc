// Goal: parts come out once and in order, also those that are text alone; Add returns the memory of
// parts that were read; after many unread parts the buffer keeps no large memory.
#include "router/front_end/http/part_buffer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::router {
namespace {

v1::GenerateResponse Part(const std::string& text) {
  v1::GenerateResponse part;
  part.mutable_delta()->set_text(text);
  part.mutable_delta()->add_tokens()->set_token_id(7);
  return part;
}

v1::GenerateResponse TextAlone(int32_t sequence_index, const std::string& text) {
  v1::GenerateResponse part;
  part.mutable_delta()->set_sequence_index(sequence_index);
  part.mutable_delta()->set_text(text);
  return part;
}

std::vector<std::string> Texts(const PartBuffer& buffer) {
  std::vector<std::string> texts;
  for (const PartBuffer::Item& item : buffer.items()) {
    texts.push_back(std::to_string(item.prompt) + " " + item.part.delta().text());
  }
  return texts;
}

TEST(PartBuffer, GivesPartsOnceAndInOrder) {
  PartBuffer buffer;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::string> expected;
    for (size_t i = 0; i < 5 - static_cast<size_t>(round); ++i) {
      v1::GenerateResponse part = Part(std::to_string(round));
      buffer.Add(i, part);
      expected.push_back(std::to_string(i) + " " + std::to_string(round));
    }
    EXPECT_EQ(Texts(buffer), expected);
    EXPECT_EQ(buffer.size(), expected.size());
    buffer.Clear();
    EXPECT_TRUE(buffer.items().empty());
  }
}

TEST(PartBuffer, TextsStayApartAndInTheirPlaces) {
  PartBuffer buffer;
  const std::string long_text(1000, 'x');
  for (int round = 0; round < 3; ++round) {
    for (int32_t i = 0; i < 3; ++i) {
      v1::GenerateResponse part = TextAlone(i, i == 1 ? long_text : std::to_string(i));
      buffer.Add(2, part);
    }
    v1::GenerateResponse empty = TextAlone(3, "");
    buffer.Add(2, empty);
    v1::GenerateResponse with_tokens = Part("tokens");
    buffer.Add(2, with_tokens);
    ASSERT_EQ(buffer.size(), 5U);
    const std::vector<std::string> expected = {"0", long_text, "2", ""};
    for (size_t i = 0; i < expected.size(); ++i) {
      const PartBuffer::Item& item = buffer.items()[i];
      ASSERT_TRUE(item.is_text) << i;
      EXPECT_EQ(item.prompt, 2U);
      EXPECT_EQ(item.sequence_index, static_cast<int32_t>(i));
      EXPECT_EQ(buffer.TextOf(item), expected[i]);
    }
    EXPECT_FALSE(buffer.items()[4].is_text);
    EXPECT_EQ(buffer.items()[4].part.delta().text(), "tokens");
    buffer.Clear();
  }
}

TEST(PartBuffer, GivesMemoryOfReadPartsToTheNextAdd) {
  PartBuffer buffer;
  v1::GenerateResponse part = Part("first");
  buffer.Add(0, part);
  buffer.Clear();
  part = Part("second");
  buffer.Add(0, part);
  EXPECT_EQ(part.delta().text(), "first");
}

TEST(PartBuffer, KeepsNoRoomOfALongRow) {
  PartBuffer buffer;
  for (int i = 0; i < 1000; ++i) {
    v1::GenerateResponse part = Part("unread");
    buffer.Add(0, part);
  }
  buffer.Clear();
  v1::GenerateResponse part = Part("next");
  buffer.Add(0, part);
  EXPECT_FALSE(part.has_delta()) << "room with an old part in it was kept";
}

}  // namespace
}  // namespace tandem::router
