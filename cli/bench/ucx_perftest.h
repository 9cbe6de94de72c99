// Runs UCX's own benchmark over TCP on loopback, for comparison: two processes of `ucx_perftest`,
// where it is installed (Debian: ucx-utils).
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::cli {

// The bandwidth of `test` ("ucp_am_bw", "ucp_put_bw") with messages of `message_bytes`, GB/s. The
// programs get `environment`.
// Errors: kNotFound when the program is not installed; kUnavailable, with the last line that it
// wrote to its standard error, when it fails, or takes longer than a minute.
absl::StatusOr<double> UcxPerftestGbps(const std::string& test, int64_t message_bytes,
                                       const std::map<std::string, std::string>& environment);

// The last line of its output in CSV form. Errors: kInvalidArgument for another output.
absl::StatusOr<double> ParseUcxPerftest(const std::string& output);

}  // namespace tandem::cli
