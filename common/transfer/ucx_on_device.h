// What this process's UCX can do with device memory: what it says, and what a trial shows.
// Thread safety: free functions from any thread, one trial of a device at a time.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/transfer/ucx_transport.h"

namespace tandem::transfer {

// OK when this UCX says that it can send CUDA memory; else kUnimplemented with its version and the
// kinds of memory that it can send.
absl::Status UcxCarriesCuda();
// "UCX 1.13.1, host memory only"
std::string DescribeUcx();
// Moves payloads of several sizes between blocks of `options.device`, through a pair of transports
// as NewUcxTransport makes them, and verifies what arrived. REQUIRES: no block holds anything yet.
// Errors: which payload did not travel, and why.
absl::Status TryUcxOnDevice(const UcxOptions& options);

}  // namespace tandem::transfer
