// The messages on a lending link, each a request of the debtor and the creditor's response.
//
//   request   kind, count | entries                          | queries (fp32), part by part
//   response  kind, count | status, flags and bytes for each | answers, entry by entry
//
// kAttend: entries are parts of one layer, of any loans. kRenew and kReturn: entries are loans. The
// response has an entry for each of the request's, in its order. An entry that failed has a text in
// place of an answer.
//
// Numbers are little-endian, as on every machine that Tandem runs on. A message is read where it
// lies: readers check each length and count first, and hand out views into it.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/engine/remote_attention.h"

namespace tandem::lending {

enum class RequestKind : uint32_t { kAttend = 1, kRenew = 2, kReturn = 3 };

// Entries of one message.
inline constexpr size_t kEntriesMax = 1024;
// Rows times units of one part, unless it has one row: so that a creditor that wants a loan back
// waits only some milliseconds for the part that it computes.
inline constexpr int64_t kRowUnitsMax = 1024;
// The text of an entry that failed.
inline constexpr size_t kStatusTextMax = 256;
// Queries of one request and answers of one response, so that both fit into a link's message with
// as many entries as there may be and a channel's header.
inline constexpr size_t kQueriesBytesMax = (size_t{1} << 20) - 48 * 1024;
inline constexpr size_t kAnswersBytesMax = (size_t{1} << 20) - 48 * 1024;

// Readers and writers copy these two structs as they are.
struct MessageHead {
  RequestKind kind;
  uint32_t count;
};

struct AttendPart {
  uint64_t loan;
  int64_t first_position;
  int32_t layer;
  int32_t first_unit;
  int32_t end_unit;
  int32_t num_rows;
  uint32_t q_floats;      // of one row
  uint32_t answer_bytes;  // that the debtor expects
};
static_assert(sizeof(AttendPart) == 40);

struct ResponseEntry {
  static constexpr uint32_t kRecalled = 1;
  // Of a kAttend response's first entry: the microseconds that the creditor computed for the
  // message, in the upper bits of `flags`, kBusyUsMax at most; 0 from a creditor that does not say.
  static constexpr int kBusyShift = 8;
  static constexpr uint32_t kBusyUsMax = (uint32_t{1} << (32 - kBusyShift)) - 1;

  uint32_t code;   // absl::StatusCode
  uint32_t flags;  // kRecalled: the creditor wants the loan back
  uint64_t bytes;  // of the answer or the text
};
static_assert(sizeof(ResponseEntry) == 16);

// Errors: kInvalidArgument, naming what is wrong.
absl::StatusOr<RequestKind> ReadKind(absl::Span<const std::byte> message);

// A kAttend request. Checked: there are 1 to kEntriesMax parts; units and rows are not negative,
// not empty, and within kRowUnitsMax; the queries' floats are those of the message; all answers
// together have at most kAnswersBytesMax bytes. What only the creditor's engine knows is not.
class AttendReader {
 public:
  // REQUIRES: the message begins at a multiple of 8, as links' messages do. Errors:
  // kInvalidArgument.
  static absl::StatusOr<AttendReader> Read(absl::Span<const std::byte> message);
  size_t size() const { return count_; }
  AttendPart part(size_t index) const;
  // The queries of all parts, in order; part i has num_rows · q_floats of them.
  absl::Span<const float> queries() const { return queries_; }

 private:
  AttendReader(absl::Span<const std::byte> message, size_t count, absl::Span<const float> queries)
      : message_(message), count_(count), queries_(queries) {}
  absl::Span<const std::byte> message_;
  size_t count_;
  absl::Span<const float> queries_;
};

// A kRenew or kReturn request: 1 to kEntriesMax loans.
class LoansReader {
 public:
  // Errors: kInvalidArgument.
  static absl::StatusOr<LoansReader> Read(absl::Span<const std::byte> message);
  size_t size() const { return count_; }
  LoanId loan(size_t index) const;

 private:
  LoansReader(absl::Span<const std::byte> message, size_t count)
      : message_(message), count_(count) {}
  absl::Span<const std::byte> message_;
  size_t count_;
};

// A response to a request of `kind` with `count` entries.
class ResponseReader {
 public:
  struct Entry {
    absl::StatusCode code;
    bool is_recalled;
    absl::Span<const std::byte> bytes;  // the answer; of an entry that failed, its text
    absl::Status status() const;
  };

  // Errors: kDataLoss.
  static absl::StatusOr<ResponseReader> Read(absl::Span<const std::byte> message, RequestKind kind,
                                             size_t count);
  // How long the creditor computed for the message, as it says; 0: it does not say.
  absl::Duration busy() const;
  // The next of `count` entries. REQUIRES: it is called at most that often.
  Entry Next();

 private:
  ResponseReader(absl::Span<const std::byte> message, size_t count)
      : message_(message), count_(count) {}
  absl::Span<const std::byte> message_;
  size_t count_;
  size_t next_ = 0;
  size_t answer_at_ = 0;
};

}  // namespace tandem::lending
