// Reads public traces of LLM serving, line by line; files may be compressed with gzip. Two formats,
// told apart by the first line:
//
//   JSON Lines  {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}, one
//               name for each 512 tokens of the prompt (Mooncake)
//   CSV         a header with columns TIMESTAMP, ContextTokens, GeneratedTokens (Azure), or
//               arrival_ns, input_tokens, output_tokens; prompts then share nothing
//
// Thread safety: one thread uses a reader.
// Bounds: a line has at most kLineBytesMax bytes, a prompt and an answer kTokensMax tokens each. A
// request comes at most kTraceGapMax after the one before it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sim/trace/workload_source.h"

namespace tandem::sim {

inline constexpr int64_t kLineBytesMax = 1 << 20;
inline constexpr int64_t kTokensMax = 1 << 21;
// A simulation of a longer pause would take hours: the times are most likely of another unit.
inline constexpr absl::Duration kTraceGapMax = absl::Hours(7 * 24);

// Errors: kNotFound when the file cannot be opened; kInvalidArgument when the first line is of
// neither format. Next() gives kInvalidArgument for an invalid line: it names file, line and field,
// what was found and what was expected.
absl::StatusOr<std::unique_ptr<WorkloadSource>> OpenTrace(const std::string& path);

}  // namespace tandem::sim
