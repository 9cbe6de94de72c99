// Measures one TCP connection over loopback between two processes of this host: blocks in random
// order, written and read in as large pieces as the KV plane's frames have, without headers,
// checksums or acknowledgements. So it shows what TCP itself allows the KV plane.
// Thread safety: one thread, in a process without other threads: it forks.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/bench/bench_child.h"
#include "cli/bench/kv_bench_side.h"
#include "common/transfer/arena_descriptor.h"

namespace tandem::cli {

class SocketBench {
 public:
  // Connects, and forks the process that reads.
  static absl::StatusOr<std::unique_ptr<SocketBench>> Fork(const KvBenchPlan& plan);

  struct Times {
    double seconds = 0, send_cpu = 0, receive_cpu = 0;
  };
  // Call once, before Round.
  absl::Status Start();
  // Moves the plan's blocks once.
  absl::StatusOr<Times> Round();

 private:
  SocketBench(const KvBenchPlan& plan, transfer::OwnedDescriptor socket,
              std::unique_ptr<BenchChild> child)
      : plan_(plan), socket_(std::move(socket)), child_(std::move(child)) {}

  const KvBenchPlan plan_;
  const transfer::OwnedDescriptor socket_;
  const std::unique_ptr<BenchChild> child_;
  std::unique_ptr<kv::BlockArena> arena_;
  std::vector<BlockId> order_;
};

}  // namespace tandem::cli
