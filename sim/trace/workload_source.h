// Where a simulated load comes from: requests in order of arrival, one at a time, so that a trace
// of any length takes little memory.
// Thread safety: a source belongs to one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem::sim {

// A request as public traces describe it: lengths and names of blocks, no text.
struct TraceRequest {
  int64_t line = 0;   // of the trace, from 1: names the request in errors
  absl::Duration at;  // arrival, counted from the first request
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;  // at least 1
  // Names of the prompt's blocks of kTraceBlockTokens tokens, the last one perhaps partly filled.
  // Equal names mean equal tokens up to the block's end. Empty: the trace does not tell, and the
  // prompt begins like no other.
  std::vector<uint64_t> blocks;
};

// Of traces that name blocks (Mooncake's format).
inline constexpr int64_t kTraceBlockTokens = 512;
// Names are below this.
inline constexpr uint64_t kBlockNamesMax = uint64_t{1} << 48;

class WorkloadSource {
 public:
  virtual ~WorkloadSource() = default;
  // The next request; `at` never decreases. nullopt at the end. Errors: kInvalidArgument for an
  // invalid line of the source's file, naming the line.
  virtual absl::StatusOr<std::optional<TraceRequest>> Next() = 0;
};

}  // namespace tandem::sim
