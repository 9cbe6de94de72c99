// Goal: no bytes of a peer make the readers of lending messages and of a link's handshake crash, or
// hand out a view beyond the message.
// Input: a message as it arrives.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "common/lending/lending_wire.h"
#include "common/lending/link_address.h"
#include "common/lending/link_handshake.h"

namespace tandem::lending {
namespace {

bool IsWithin(absl::Span<const std::byte> view, absl::Span<const std::byte> message) {
  return view.empty() || (view.data() >= message.data() &&
                          view.data() + view.size() <= message.data() + message.size());
}

void ReadRequests(absl::Span<const std::byte> message) {
  (void)ReadKind(message);
  if (const auto attend = AttendReader::Read(message); attend.ok()) {
    uint64_t floats = 0, answers = 0;
    for (size_t i = 0; i < attend->size(); ++i) {
      const AttendPart part = attend->part(i);
      floats += uint64_t{part.q_floats} * static_cast<uint64_t>(part.num_rows);
      answers += part.answer_bytes;
    }
    const absl::Span<const std::byte> queries(
        reinterpret_cast<const std::byte*>(attend->queries().data()),
        attend->queries().size() * sizeof(float));
    if (floats != attend->queries().size() || answers > kAnswersBytesMax ||
        !IsWithin(queries, message)) {
      std::abort();
    }
  }
  if (const auto loans = LoansReader::Read(message); loans.ok()) {
    for (size_t i = 0; i < loans->size(); ++i) (void)loans->loan(i);
  }
}

void ReadResponses(absl::Span<const std::byte> message) {
  if (message.size() < sizeof(MessageHead)) return;
  MessageHead head;
  std::memcpy(&head, message.data(), sizeof head);
  auto reader = ResponseReader::Read(message, head.kind, head.count);
  for (uint32_t i = 0; reader.ok() && i < head.count; ++i) {
    const ResponseReader::Entry entry = reader->Next();
    if (!IsWithin(entry.bytes, message)) std::abort();
    (void)entry.status();
  }
}

void Run(const uint8_t* data, size_t size) {
  // As links hand messages out: at a multiple of eight, in memory of its size.
  std::vector<uint64_t> words((size + 7) / 8);
  if (size > 0) std::memcpy(words.data(), data, size);
  const absl::Span<const std::byte> message(reinterpret_cast<const std::byte*>(words.data()), size);
  ReadRequests(message);
  ReadResponses(message);
  const std::string text(reinterpret_cast<const char*>(data), size);
  const DebtorId self = {.node = NodeId("c"), .incarnation = Incarnation(2)};
  CreditorHandshake creditor("s", self, "unix:a");
  if (creditor.Challenge(text).ok() && creditor.Check(text).ok()) std::abort();
  (void)ParseLinkAddress(text);
}

}  // namespace
}  // namespace tandem::lending

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::lending::Run(data, size);
  return 0;
}
