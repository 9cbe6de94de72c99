// The lines of a batch: parses requests, formats answers, and reads what an earlier run answered.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
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
// field; an unknown field that could change the answer is refused.
absl::StatusOr<BatchRequest> ParseBatchLine(absl::string_view line, int64_t number,
                                            const v1::GenerateRequest& defaults);

// The name of a line that ParseBatchLine refused: its custom_id if that can be read, else "line-N".
std::string BatchLineName(absl::string_view line, int64_t number);

struct BatchAnswer {
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
  absl::flat_hash_set<std::string> answered;
  std::string answers;  // whole lines
  int64_t dropped = 0;  // errors, and a last line that was not written to its end
};
// Returns the answers; drops errors, whose requests are tried again, and an incomplete last line.
// kFailedPrecondition names a line that no batch can have written.
absl::StatusOr<BatchOutput> ReadBatchOutput(absl::string_view text);

}  // namespace tandem::cli
