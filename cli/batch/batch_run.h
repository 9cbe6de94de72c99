// Sends the requests of a JSON Lines file, several at a time, and writes the answers to another
// file. A run that was interrupted continues where it stopped. "-" is standard input or output; a
// run whose answers go to standard output begins anew. Thread safety: a function; it starts
// and joins its own threads.
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
  v1::GenerateRequest defaults;  // for fields that a line does not set
};

struct BatchCounts {
  int64_t lines = 0;
  int64_t skipped = 0;  // answered by an earlier run
  int64_t answered = 0;
  int64_t failed = 0;
};

// Appends to the output one answer or error for every input line that has no answer there yet, in
// the order in which requests end. It first removes an earlier run's errors from the output; their
// lines are tried again. Errors: a file cannot be read or written, the output was not written by a
// batch, the router cannot be reached; kFailedPrecondition names a line whose answer there is to
// another request, because the line or the defaults have changed: before any request is sent where
// the input is a regular file, and otherwise when its turn comes; answers that were under way are
// then still written. Bounds: holds a line for each request in flight, and the names of all.
absl::StatusOr<BatchCounts> RunBatch(const BatchOptions& options, Client& client);

}  // namespace tandem::cli
