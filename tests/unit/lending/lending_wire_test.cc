// Goal: whatever bytes a peer sends, the readers of lending messages find what is wrong with them
// before anyone computes, and read back what was written.
#include "common/lending/lending_wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/runtime/random.h"

namespace tandem::lending {
namespace {

// A message at an address that links' messages have.
class Message {
 public:
  template <typename Value>
  void Add(const Value& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof value);
  }
  absl::Span<const std::byte> Take() {
    words_.assign((bytes_.size() + 7) / 8, 0);
    if (!bytes_.empty()) std::memcpy(words_.data(), bytes_.data(), bytes_.size());
    return {reinterpret_cast<const std::byte*>(words_.data()), bytes_.size()};
  }
  std::vector<std::byte> bytes_;

 private:
  std::vector<uint64_t> words_;
};

AttendPart GoodPart() {
  return {.loan = 5,
          .first_position = 700,
          .layer = 2,
          .first_unit = 1,
          .end_unit = 3,
          .num_rows = 4,
          .q_floats = 3,
          .answer_bytes = 64};
}

Message Attend(const std::vector<AttendPart>& parts, size_t floats, uint32_t count) {
  Message message;
  message.Add(MessageHead{.kind = RequestKind::kAttend, .count = count});
  for (const AttendPart& part : parts) message.Add(part);
  for (size_t i = 0; i < floats; ++i) message.Add(static_cast<float>(i));
  return message;
}

TEST(LendingWireTest, AnAttendMessageIsReadWhereItLies) {
  AttendPart second = GoodPart();
  second.loan = 6;
  second.num_rows = 1;
  second.end_unit = 1 << 20;  // one row may meet many units
  Message message = Attend({GoodPart(), second}, 15, 2);
  const auto reader = AttendReader::Read(message.Take());
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_EQ(reader->size(), 2u);
  EXPECT_EQ(reader->part(1).loan, 6u);
  EXPECT_EQ(reader->part(0).answer_bytes, 64u);
  ASSERT_EQ(reader->queries().size(), 15u);
  EXPECT_EQ(reader->queries()[14], 14.0f);
}

TEST(LendingWireTest, EachImpossibleFieldOfAPartIsRefused) {
  const auto refuses = [](void (*change)(AttendPart&), size_t floats = 12) {
    AttendPart part = GoodPart();
    change(part);
    Message message = Attend({part}, floats, 1);
    return AttendReader::Read(message.Take()).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refuses([](AttendPart&) {}));
  EXPECT_TRUE(refuses([](AttendPart& part) { part.layer = -1; }));
  EXPECT_TRUE(refuses([](AttendPart& part) { part.first_unit = -1; }));
  EXPECT_TRUE(refuses([](AttendPart& part) { part.end_unit = part.first_unit; }));
  EXPECT_TRUE(refuses([](AttendPart& part) { part.end_unit = INT32_MIN; }));
  EXPECT_TRUE(refuses([](AttendPart& part) { part.num_rows = 0; }));
  EXPECT_TRUE(refuses([](AttendPart& part) { part.num_rows = -4; }));
  EXPECT_TRUE(refuses([](AttendPart& part) { part.num_rows = INT32_MAX; }));
  EXPECT_TRUE(refuses([](AttendPart& part) { part.q_floats = 0; }));
  EXPECT_TRUE(refuses([](AttendPart& part) { part.q_floats = UINT32_MAX; }));
  EXPECT_TRUE(refuses([](AttendPart& part) { part.first_position = -1; }));
  EXPECT_TRUE(refuses([](AttendPart& part) { part.answer_bytes = kAnswersBytesMax + 1; }));
  EXPECT_FALSE(refuses([](AttendPart& part) { part.answer_bytes = kAnswersBytesMax; }));
  EXPECT_TRUE(refuses([](AttendPart&) {}, 11));
  EXPECT_TRUE(refuses([](AttendPart&) {}, 13));
  // Rows times units, at the bound and beyond it.
  EXPECT_FALSE(refuses([](AttendPart& part) { part.end_unit = part.first_unit + 256; }));
  EXPECT_TRUE(refuses([](AttendPart& part) { part.end_unit = part.first_unit + 257; }));
}

TEST(LendingWireTest, AnswersOfManyPartsTogetherAreBounded) {
  AttendPart half = GoodPart();
  half.answer_bytes = kAnswersBytesMax / 2;
  Message two = Attend({half, half}, 24, 2), three = Attend({half, half, half}, 36, 3);
  EXPECT_TRUE(AttendReader::Read(two.Take()).ok());
  EXPECT_FALSE(AttendReader::Read(three.Take()).ok());
}

TEST(LendingWireTest, CountsAndCutMessagesAreRefused) {
  for (const uint32_t count : {0u, 2u, 1000u, 1025u, UINT32_MAX}) {
    Message message = Attend({GoodPart()}, 12, count);
    EXPECT_FALSE(AttendReader::Read(message.Take()).ok()) << count;
    EXPECT_FALSE(LoansReader::Read(message.Take()).ok()) << count;
  }
  Message whole = Attend({GoodPart()}, 12, 1);
  const auto bytes = whole.Take();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(AttendReader::Read(bytes.first(size)).ok()) << size;
  }
  EXPECT_TRUE(AttendReader::Read(bytes).ok());
  Message most;
  most.Add(MessageHead{.kind = RequestKind::kRenew, .count = kEntriesMax});
  for (uint64_t loan = 0; loan < kEntriesMax; ++loan) most.Add(loan);
  const auto loans = LoansReader::Read(most.Take());
  ASSERT_TRUE(loans.ok());
  EXPECT_EQ(loans->loan(kEntriesMax - 1), LoanId(kEntriesMax - 1));
}

TEST(LendingWireTest, KindsThatAreNoneAreRefused) {
  for (uint32_t kind = 0; kind < 10; ++kind) {
    Message message;
    message.Add(MessageHead{.kind = static_cast<RequestKind>(kind), .count = 1});
    message.Add(uint64_t{1});
    EXPECT_EQ(ReadKind(message.Take()).ok(), kind >= 1 && kind <= 3) << kind;
  }
  EXPECT_FALSE(ReadKind({}).ok());
}

Message Response(const std::vector<ResponseEntry>& entries, size_t bytes) {
  Message message;
  message.Add(
      MessageHead{.kind = RequestKind::kAttend, .count = static_cast<uint32_t>(entries.size())});
  for (const ResponseEntry& entry : entries) message.Add(entry);
  for (size_t i = 0; i < bytes; ++i) message.Add(static_cast<char>('a' + i % 26));
  return message;
}

TEST(LendingWireTest, AResponseGivesEachEntryItsBytesOrItsStatus) {
  Message message = Response({{.code = 0, .flags = 0, .bytes = 3},
                              {.code = 5, .flags = ResponseEntry::kRecalled, .bytes = 2},
                              {.code = 0, .flags = 0, .bytes = 0}},
                             5);
  auto reader = ResponseReader::Read(message.Take(), RequestKind::kAttend, 3);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->Next().bytes.size(), 3u);
  const ResponseReader::Entry failed = reader->Next();
  EXPECT_EQ(failed.status(), absl::NotFoundError("de"));
  EXPECT_TRUE(failed.is_recalled);
  EXPECT_TRUE(reader->Next().status().ok());
}

TEST(LendingWireTest, AResponseTellsHowLongTheCreditorComputed) {
  const uint32_t most = ResponseEntry::kBusyUsMax;
  for (const uint32_t us : {0u, 1u, 1000u, most}) {
    for (const uint32_t flags : {0u, ResponseEntry::kRecalled}) {
      Message message =
          Response({{.code = 0, .flags = flags | us << ResponseEntry::kBusyShift, .bytes = 0}}, 0);
      auto reader = ResponseReader::Read(message.Take(), RequestKind::kAttend, 1);
      ASSERT_TRUE(reader.ok()) << reader.status();
      EXPECT_EQ(reader->busy(), absl::Microseconds(us));
      EXPECT_EQ(reader->Next().is_recalled, flags != 0);
    }
  }
}

TEST(LendingWireTest, AResponseThatDoesNotFitItsRequestIsDataLoss) {
  const auto code = [](const std::vector<ResponseEntry>& entries, size_t bytes,
                       RequestKind kind = RequestKind::kAttend, size_t count = 1) {
    Message message = Response(entries, bytes);
    return ResponseReader::Read(message.Take(), kind, count).status().code();
  };
  const ResponseEntry good = {.code = 0, .flags = 0, .bytes = 4};
  EXPECT_EQ(code({good}, 4), absl::StatusCode::kOk);
  EXPECT_EQ(code({good}, 3), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code({good}, 5), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code({good, good}, 8), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code({good}, 4, RequestKind::kRenew), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code({}, 0), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code({{.code = 17, .flags = 0, .bytes = 4}}, 4), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code({{.code = 5, .flags = 0, .bytes = 257}}, 257), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code({{.code = 5, .flags = 0, .bytes = 256}}, 256), absl::StatusCode::kOk);
  EXPECT_EQ(code({{.code = 0, .flags = 0, .bytes = UINT64_MAX}}, 4), absl::StatusCode::kDataLoss);
}

TEST(LendingWireTest, RandomChangesOfGoodMessagesAreReadOrRefused) {
  const uint64_t seed = 20;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const auto random = NewSeededRandom(seed);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    Message message =
        random->Below(2) == 0
            ? Attend({GoodPart(), GoodPart()}, 24, 2)
            : Response({{.code = 0, .flags = 1, .bytes = 30}, {.code = 3, .flags = 0, .bytes = 20}},
                       50);
    const size_t at = random->Below(message.bytes_.size());
    message.bytes_[at] = static_cast<std::byte>(random->Next());
    const auto bytes = message.Take();
    const auto attend = AttendReader::Read(bytes);
    uint64_t floats = 0;
    for (size_t part = 0; attend.ok() && part < attend->size(); ++part) {
      floats += uint64_t{attend->part(part).q_floats} *
                static_cast<uint64_t>(attend->part(part).num_rows);
    }
    if (attend.ok()) {
      EXPECT_EQ(floats, attend->queries().size());
    }
    auto response = ResponseReader::Read(bytes, RequestKind::kAttend, 2);
    if (response.ok()) {
      EXPECT_EQ(response->Next().bytes.size() + response->Next().bytes.size(), bytes.size() - 40);
    }
    ++(attend.ok() || response.ok() ? accepted : refused);
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace tandem::lending
