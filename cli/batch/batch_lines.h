// The lines of a batch: parses requests, formats answers, and reads what an earlier run answered.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

struct BatchRequest {
  std::string custom_id;  // "line-N" when the line has none
  v1::GenerateRequest request;
};

// Parses line `number` (from 1) of a batch: OpenAI's {"custom_id", "url", "body"}, or a body alone,
// with an optional "custom_id" in it. A body holds "prompt" (text or token ids) or "messages", and
// parameters by OpenAI's and vLLM's names, which override `defaults`. kInvalidArgument names the
// field; any other field is refused, unless it changes no answer
// (common/request/request_members.h) or asks for nothing.
absl::StatusOr<BatchRequest> ParseBatchLine(absl::string_view line, int64_t number,
                                            const v1::GenerateRequest& defaults);

// The name of a line that ParseBatchLine refused: its custom_id if that can be read, else "line-N".
std::string BatchLineName(absl::string_view line, int64_t number);

// A digest of what decides the answer: the line's request and the flags below it. Who asks and how
// urgently is no part of it.
std::string DigestOf(const v1::GenerateRequest& request);

struct BatchAnswer {
  std::string request_digest;
  std::string text;
  std::vector<int32_t> tokens;
  v1::Finished finished;
};
// Each ends with a newline.
std::string FormatBatchAnswer(absl::string_view custom_id, const BatchAnswer& answer);
std::string FormatBatchError(absl::string_view custom_id, int64_t number,
                             const absl::Status& error);

// What an earlier run left behind.
struct BatchOutput {
  absl::flat_hash_map<std::string, std::string> answered;  // custom_id -> digest of its request
  // Whether the file has more than whole answers: errors, whose requests are tried again, or a last
  // line that was not written to its end.
  bool must_be_repaired = false;
};
// The longest line of an output; no answer comes near it.
inline constexpr size_t kOutputLineBytesMax = size_t{256} << 20;

// Reads an output line by line, and writes its whole answers to `answers`, if not null. Errors:
// kFailedPrecondition names a line that no batch can have written; kUnavailable when `file` cannot
// be read to its end.
absl::StatusOr<BatchOutput> ReadBatchOutput(std::istream& file, std::ostream* answers);

}  // namespace tandem::cli
