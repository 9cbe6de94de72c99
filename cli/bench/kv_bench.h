// Measures KV transfers between two processes of this host, beside copies of one thread between the
// same kinds of memory in the same run. A transfer is a real one: leases, headers, checksums on
// both sides, acknowledgements. Blocks are visited in random order and all memory has been touched
// before, so both figures are of memory that no cache holds when --bytes is larger than the caches.
// Thread safety: one thread, in a process without other threads: it forks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::cli {

struct KvBenchOptions {
  std::vector<int64_t> block_bytes;     // of one layer's block; each divides `bytes`
  std::vector<std::string> transports;  // "mapped", "shm" or "tcp"
  int64_t bytes = 256 << 20;            // moved in each round
  int32_t streams = 1;                  // transfers at a time, each with a share of the bytes
  int32_t rounds = 5;                   // the median counts; one more goes before, unmeasured
};

struct KvBenchResult {
  std::string transport;
  int64_t block_bytes = 0;
  double memcpy_gbps = 0;  // of one thread, in rounds between the transfer's
  double gbps = 0;
  // Processor time of all threads of a process, polling included.
  double send_cpu_ms_per_mb = 0, receive_cpu_ms_per_mb = 0;
  // From the push of one block to its acknowledgement: data, end and ACK.
  double round_trip_us = 0;
};

// Runs all block sizes over all transports. Errors: kInvalidArgument for sizes that do not fit;
// what a transport failed with.
absl::StatusOr<std::vector<KvBenchResult>> BenchKv(const KvBenchOptions& options);

std::string FormatTable(const std::vector<KvBenchResult>& results);
// Top-level figures are of the largest block size: memcpy_gbps, shm_gbps (the faster of mapped and
// shm), tcp_gbps and round_trip_us (of the same transport as shm_gbps); 0 for what was not
// measured.
std::string FormatJson(const std::vector<KvBenchResult>& results);

}  // namespace tandem::cli
