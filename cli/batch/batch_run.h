// Answers the requests of a JSON Lines file, several at a time, into another; a run that was ended
// goes on where it was.
// Thread safety: RunBatch starts and joins its own threads.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/client/client.h"

namespace tandem::cli {

struct BatchOptions {
  std::string input;
  std::string output;
  int32_t concurrency = 8;
  v1::GenerateRequest defaults;  // of what a line does not say
};

struct BatchCounts {
  int64_t lines = 0;
  int64_t skipped = 0;  // answered by an earlier run
  int64_t answered = 0;
  int64_t failed = 0;
};

// Every line of the input that has no answer in the output gets one appended, in the order in which
// they end, or an error. An earlier run's errors are dropped from the output first and tried again.
// An error of the whole: files that cannot be read or written, an output that is no batch's, a
// router that is not there.
absl::StatusOr<BatchCounts> RunBatch(const BatchOptions& options, Client& client);

}  // namespace tandem::cli
