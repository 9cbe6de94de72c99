// Measures a message pair between two processes of this host over a CallChannel
// (common/transfer/call_channel.h): a call of 64 bytes, and its response of 64.
// Thread safety: one thread, in a process without other threads: it forks.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/bench/bench_child.h"
#include "common/transfer/arena_descriptor.h"

namespace tandem::cli {

class CallBench {
 public:
  // Forks the process that answers. Both ends spin for `spin` before they sleep.
  static absl::StatusOr<std::unique_ptr<CallBench>> Fork(absl::Duration spin);
  // The median of some thousand calls. Call once.
  absl::StatusOr<absl::Duration> RoundTrip();

 private:
  CallBench(absl::Duration spin, transfer::OwnedDescriptor socket, transfer::OwnedDescriptor memory,
            std::unique_ptr<BenchChild> child)
      : spin_(spin),
        socket_(std::move(socket)),
        memory_(std::move(memory)),
        child_(std::move(child)) {}

  const absl::Duration spin_;
  transfer::OwnedDescriptor socket_, memory_;
  const std::unique_ptr<BenchChild> child_;
};

}  // namespace tandem::cli
