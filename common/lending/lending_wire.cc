#include "common/lending/lending_wire.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem::lending {
namespace {

template <typename Value>
Value ReadAt(absl::Span<const std::byte> message, size_t offset) {
  Value value;
  std::memcpy(&value, message.data() + offset, sizeof value);
  return value;
}

// The head of a message whose entries, of entry_bytes each, are all there.
absl::StatusOr<MessageHead> ReadHead(absl::Span<const std::byte> message, size_t entry_bytes) {
  if (message.size() < sizeof(MessageHead)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message of ", message.size(), " bytes, expected at least ", sizeof(MessageHead)));
  }
  const auto head = ReadAt<MessageHead>(message, 0);
  if (head.count == 0 || head.count > kEntriesMax ||
      (message.size() - sizeof head) / entry_bytes < head.count) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", message.size(), " bytes with ",
                                                   head.count, " entries, expected 1 to ",
                                                   kEntriesMax, " of ", entry_bytes, " bytes"));
  }
  return head;
}

absl::Status CheckPart(const AttendPart& part) {
  const int64_t units = int64_t{part.end_unit} - part.first_unit;
  if (part.layer < 0 || part.first_unit < 0 || units <= 0 || part.num_rows <= 0 ||
      part.first_position < 0 || part.q_floats == 0 ||
      (part.num_rows > 1 && part.num_rows * units > kRowUnitsMax)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "loan ", part.loan, ": units ", part.first_unit, " to ", part.end_unit, " of layer ",
        part.layer, " for ", part.num_rows, " rows of ", part.q_floats, " floats from position ",
        part.first_position, ", expected at most ", kRowUnitsMax, " rows times units"));
  }
  return absl::OkStatus();
}

bool IsStatusCode(uint32_t code) {
  return code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
}

}  // namespace

absl::StatusOr<RequestKind> ReadKind(absl::Span<const std::byte> message) {
  ASSIGN_OR_RETURN(const MessageHead head, ReadHead(message, 1));
  if (head.kind != RequestKind::kAttend && head.kind != RequestKind::kRenew &&
      head.kind != RequestKind::kReturn) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of kind ", static_cast<uint32_t>(head.kind)));
  }
  return head.kind;
}

absl::StatusOr<AttendReader> AttendReader::Read(absl::Span<const std::byte> message) {
  TANDEM_CHECK(reinterpret_cast<uintptr_t>(message.data()) % 8 == 0);
  ASSIGN_OR_RETURN(const MessageHead head, ReadHead(message, sizeof(AttendPart)));
  const size_t queries_at = sizeof head + head.count * sizeof(AttendPart);
  const size_t query_bytes = message.size() - queries_at;
  uint64_t floats = 0, answers_bytes = 0;
  for (size_t i = 0; i < head.count; ++i) {
    const auto part = ReadAt<AttendPart>(message, sizeof head + i * sizeof(AttendPart));
    RETURN_IF_ERROR(CheckPart(part));
    // No overflow: one part adds less than 2^63, and a sum beyond the message ends the loop.
    floats += static_cast<uint64_t>(part.num_rows) * part.q_floats;
    answers_bytes += part.answer_bytes;
    if (floats > query_bytes / sizeof(float) || answers_bytes > kAnswersBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parts with ", floats, " floats and ", answers_bytes, " bytes of answers, expected ",
          query_bytes / sizeof(float), " floats and at most ", kAnswersBytesMax, " bytes"));
    }
  }
  if (floats * sizeof(float) != query_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("parts with ", floats, " floats in ", query_bytes, " bytes"));
  }
  return AttendReader(
      message, head.count,
      absl::MakeConstSpan(reinterpret_cast<const float*>(message.data() + queries_at), floats));
}

AttendPart AttendReader::part(size_t index) const {
  TANDEM_CHECK(index < count_);
  return ReadAt<AttendPart>(message_, sizeof(MessageHead) + index * sizeof(AttendPart));
}

absl::StatusOr<LoansReader> LoansReader::Read(absl::Span<const std::byte> message) {
  ASSIGN_OR_RETURN(const MessageHead head, ReadHead(message, sizeof(uint64_t)));
  if (message.size() != sizeof head + head.count * sizeof(uint64_t)) {
    return absl::InvalidArgumentError(
        absl::StrCat(head.count, " loans in ", message.size(), " bytes"));
  }
  return LoansReader(message, head.count);
}

LoanId LoansReader::loan(size_t index) const {
  TANDEM_CHECK(index < count_);
  return LoanId(ReadAt<uint64_t>(message_, sizeof(MessageHead) + index * sizeof(uint64_t)));
}

absl::StatusOr<ResponseReader> ResponseReader::Read(absl::Span<const std::byte> message,
                                                    RequestKind kind, size_t count) {
  const auto head = ReadHead(message, sizeof(ResponseEntry));
  if (!head.ok()) return absl::DataLossError(head.status().message());
  if (head->kind != kind || head->count != count) {
    return absl::DataLossError(absl::StrCat(
        "a response of kind ", static_cast<uint32_t>(head->kind), " with ", head->count,
        " entries, expected kind ", static_cast<uint32_t>(kind), " with ", count));
  }
  ResponseReader reader(message, count);
  reader.answer_at_ = sizeof(MessageHead) + count * sizeof(ResponseEntry);
  uint64_t left = message.size() - reader.answer_at_;
  for (size_t i = 0; i < count; ++i) {
    const auto entry =
        ReadAt<ResponseEntry>(message, sizeof(MessageHead) + i * sizeof(ResponseEntry));
    if (entry.bytes > left || !IsStatusCode(entry.code) ||
        (entry.code != 0 && entry.bytes > kStatusTextMax)) {
      return absl::DataLossError(absl::StrCat("a response's entry ", i, " has code ", entry.code,
                                              " and ", entry.bytes, " bytes of ", left));
    }
    left -= entry.bytes;
  }
  if (left != 0) return absl::DataLossError(absl::StrCat(left, " bytes behind a response"));
  return reader;
}

absl::Duration ResponseReader::busy() const {
  const auto first = ReadAt<ResponseEntry>(message_, sizeof(MessageHead));
  return absl::Microseconds(first.flags >> ResponseEntry::kBusyShift);
}

ResponseReader::Entry ResponseReader::Next() {
  TANDEM_CHECK(next_ < count_);
  const auto entry =
      ReadAt<ResponseEntry>(message_, sizeof(MessageHead) + next_++ * sizeof(ResponseEntry));
  const auto bytes = message_.subspan(answer_at_, entry.bytes);
  answer_at_ += entry.bytes;
  return {.code = static_cast<absl::StatusCode>(entry.code),
          .is_recalled = (entry.flags & ResponseEntry::kRecalled) != 0,
          .bytes = bytes};
}

absl::Status ResponseReader::Entry::status() const {
  if (code == absl::StatusCode::kOk) return absl::OkStatus();
  return absl::Status(code,
                      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace tandem::lending
