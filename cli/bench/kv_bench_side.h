// One process's side of `tandem bench kv`: an arena, a KV plane, and rounds in which it sends or
// receives all of the arena's blocks. Thread safety: the owner's thread; the KV plane has its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/bounded_queue.h"
#include "common/kv/block_arena.h"
#include "common/transfer/transfer_service.h"

namespace tandem::cli {

// What both processes of a measurement agree on.
struct KvBenchPlan {
  std::string transport;  // "mapped", "shm" or "tcp"
  int64_t block_bytes = 0;
  int32_t num_blocks = 0;
  int32_t streams = 1;
};

// The blocks [0, num_blocks) in a random order, always the same for one seed.
std::vector<BlockId> ShuffledBlocks(int32_t num_blocks, uint64_t seed);

class KvBenchSide {
 public:
  // `number` is the process's incarnation, and the seed of its blocks' order.
  static absl::StatusOr<std::unique_ptr<KvBenchSide>> Create(const KvBenchPlan& plan,
                                                             uint64_t number);

  const std::string& address() const { return service_->address(); }
  // Opens the leases of `round`, of `num_blocks` blocks in all; returns once they are open.
  absl::Status Open(uint64_t round, int32_t num_blocks);
  // Returns once the leases are installed and their events are counted.
  absl::Status AwaitInstalled();
  // Sends blocks into the leases of `round` at the process with `address` and incarnation
  // `receiver`; returns once they are acknowledged.
  absl::Status Send(uint64_t round, int32_t num_blocks, const std::string& address,
                    uint64_t receiver);

 private:
  explicit KvBenchSide(const KvBenchPlan& plan) : plan_(plan), events_(kEventsMax) {}
  static constexpr size_t kEventsMax = 4096;

  absl::Status Start(uint64_t number);
  // The blocks of one of the round's streams.
  std::vector<BlockId> BlocksOf(int32_t stream, int32_t num_blocks) const;
  template <typename Event>
  absl::Status Await();

  const KvBenchPlan plan_;
  std::vector<BlockId> order_;
  std::unique_ptr<kv::BlockArena> arena_;
  BoundedQueue<transfer::TransferEvent> events_;
  std::unique_ptr<transfer::TransferService> service_;  // last: its thread uses what is above
};

}  // namespace tandem::cli
