// Measures KV transfers between two processes of this host, beside copies of one thread between the
// same kinds of memory, a raw TCP connection and UCX's own benchmark in the same run. A transfer is
// a real one: leases, headers, checksums on both sides, acknowledgements. Blocks are visited in
// random order and all memory has been touched before, so all figures are of memory that no cache
// holds when --bytes is larger than the caches.
// Thread safety: one thread, in a process without other threads: it forks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::cli {

struct KvBenchOptions {
  std::vector<int64_t> block_bytes;     // of one layer's block; each divides `bytes`
  std::vector<std::string> transports;  // as kv_bench_transport.h names them, or "socket"
  std::vector<int32_t> streams;         // transfers at a time, each with a share of the bytes
  std::vector<bool> both_directions;    // whether each process also receives; not for "socket"
  int64_t bytes = 256 << 20;            // moved in each round and direction
  int32_t rounds = 5;                   // the median counts; one more goes before, unmeasured
  int32_t paced = 200;                  // paced transfers over each transport; 0: none
  bool ucx_perftest = true;             // also run it, where it is installed
  std::map<std::string, std::string> environment;  // of this process, for ucx_perftest
};

struct KvBenchResult {
  std::string transport;
  int64_t block_bytes = 0;
  int32_t streams = 1;
  bool both = false;
  double memcpy_gbps = 0;  // of one thread, in rounds between the transfer's
  double gbps = 0;         // of both directions together
  // Processor time of all threads of a process, polling included, for the bytes that moved.
  double send_cpu_ms_per_mb = 0, receive_cpu_ms_per_mb = 0;
  // From the push of one block to its acknowledgement: data, end and ACK.
  double push_to_ack_us = 0;
  // When the first of a round's transfers ended, as a share of when the last one did.
  double fairness = 1;
};

// Transfers of 8 MiB in 16 layers that a stand-in for a prefill pushes at its pace (1 ms a layer).
struct KvPaced {
  std::string transport;
  double wire_ms = 0;      // median of the time during which KV was being received
  double hidden_part = 0;  // of all that time, what lay before the end of the prefill
  double beyond_ms_p50 = 0, beyond_ms_p99 = 0;  // after the prefill and not on the wire
};

struct KvBenchReport {
  std::vector<KvBenchResult> results;
  std::vector<KvPaced> paced;
  // A call and its response over a CallChannel: while both ends spin, and when both sleep.
  double round_trip_us = 0, sleep_round_trip_us = 0;
  // ucx_perftest over TCP with messages of the largest block size; 0: not run.
  double ucx_am_gbps = 0, ucx_put_gbps = 0;
  std::string ucx_note;  // why it was not run
};

// Runs all block sizes over all transports. Errors: kInvalidArgument for sizes that do not fit;
// what a transport failed with.
absl::StatusOr<KvBenchReport> BenchKv(const KvBenchOptions& options);

std::string FormatTable(const KvBenchReport& report);
// Top-level figures are of the largest block size and the fewest streams in one direction:
// memcpy_gbps, shm_gbps (the faster of mapped and shm), tcp_gbps, socket_gbps; 0 for what was not
// measured.
std::string FormatJson(const KvBenchReport& report);

}  // namespace tandem::cli
