// One process's side of `tandem bench kv`: an arena, a KV plane, and rounds in which it sends or
// receives all of the arena's blocks. Thread safety: the owner's thread; the KV plane has its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/bounded_queue.h"
#include "common/kv/block_arena.h"
#include "common/transfer/transfer_service.h"

namespace tandem::cli {

// What both processes of a measurement agree on.
struct KvBenchPlan {
  std::string transport;  // as kv_bench_transport.h names them; "socket" has no KV plane
  int64_t block_bytes = 0;
  int32_t num_layers = 1;
  int32_t num_blocks = 0;  // that a round moves in one direction
  int32_t streams = 1;     // transfers of a round
  bool both = false;       // each process sends and receives at once
};

// What one process does in one round.
struct KvBenchRound {
  uint64_t number = 0;
  int32_t num_blocks = 0;
  // Stands in for a layer's computation: the time before each layer is pushed.
  absl::Duration layer_time;
};

// The blocks [0, num_blocks) in a random order, always the same for one seed.
std::vector<BlockId> ShuffledBlocks(int32_t num_blocks, uint64_t seed);

constexpr uint64_t kKvBenchSender = 1, kKvBenchReceiver = 2;  // incarnations

class KvBenchSide {
 public:
  // `number` is the process's incarnation, and the seed of its blocks' order. The sending process
  // of a plan for one direction is kKvBenchSender.
  static absl::StatusOr<std::unique_ptr<KvBenchSide>> Create(const KvBenchPlan& plan,
                                                             uint64_t number);

  const std::string& address() const { return service_->address(); }
  // Opens the leases of `round`; returns once they are open.
  absl::Status Open(const KvBenchRound& round);
  // Sends into the leases of `round` at the process with `address` and incarnation `receiver`.
  absl::Status Send(const KvBenchRound& round, const std::string& address, uint64_t receiver);
  struct Ends {
    std::vector<absl::Time> exports;  // when they were acknowledged, in that order
    std::vector<transfer::LeaseInstalled> leases;
  };
  // Waits for the ends of what Open and Send began. Errors: what one of them failed with.
  absl::StatusOr<Ends> AwaitEnds();

 private:
  explicit KvBenchSide(const KvBenchPlan& plan) : plan_(plan), events_(kEventsMax) {}
  static constexpr size_t kEventsMax = 4096;

  absl::Status Start(uint64_t number);
  absl::Status PushLayer(const std::vector<transfer::OpenExport>& exports, int32_t layer);
  // Of the `num_blocks` blocks that lie in `order`, those of one stream.
  std::vector<BlockId> BlocksOf(const std::vector<BlockId>& order, int32_t stream,
                                int32_t num_blocks) const;

  struct TimedEvent {
    transfer::TransferEvent event;
    absl::Time at;
  };
  const KvBenchPlan plan_;
  std::vector<BlockId> send_order_, receive_order_;
  size_t exports_open_ = 0, leases_open_ = 0;
  std::unique_ptr<kv::BlockArena> arena_;
  BoundedQueue<TimedEvent> events_;
  std::unique_ptr<transfer::TransferService> service_;  // last: its thread uses what is above
};

}  // namespace tandem::cli
