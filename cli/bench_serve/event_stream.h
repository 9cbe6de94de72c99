// Reads server-sent events as OpenAI-compatible servers write them: splits bytes into events, and
// takes from an event what a load measures. Thread safety: none; one thread at a time. Owner: the
// HTTP call.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::cli {

// Splits a byte stream, however it was cut, into its events' data.
class EventStreamReader {
 public:
  // Calls `on_data` with the data of every event that `bytes` completes. kResourceExhausted for an
  // event of more than kEventBytesMax.
  absl::Status Append(absl::string_view bytes,
                      const std::function<void(absl::string_view)>& on_data);
  static constexpr size_t kEventBytesMax = 16 << 20;

 private:
  void OnLine(absl::string_view line, const std::function<void(absl::string_view)>& on_data);

  std::string line_;  // not ended yet
  std::string data_;  // of the event so far
  bool has_data_ = false;
};

struct AnswerUsage {
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
  int32_t cached_tokens = 0;
  std::string service_tier;  // that served the request; empty: the server does not say
  // These Tandem's gRPC says.
  bool prefilled_apart = false;  // by a prefill node
  // Of the cached tokens: what was brought for this prompt, as v1::TokensBySource counts it.
  int64_t host_memory_tokens = 0, disk_tokens = 0, fetched_tokens = 0;
};

// What one event of a completion says.
struct AnswerEvent {
  bool done = false;      // the stream's last
  bool has_text = false;  // carries a piece of the answer
  std::optional<AnswerUsage> usage;
  std::string error;  // an error object's message
};

// Parses as little as possible: for most events, only whether their text is empty.
AnswerEvent ReadAnswerEvent(absl::string_view data);

// The "error"."message" of an error reply, else the beginning of `body`.
std::string ErrorMessageOf(absl::string_view body);

}  // namespace tandem::cli
