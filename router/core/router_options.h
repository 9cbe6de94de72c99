// Limits and deadlines of a RouterCore. RouterConfig registers each field as a flag.
// Thread safety: a value; the core keeps a copy that does not change.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/kv/block_hash.h"
#include "router/core/service_tier.h"
#include "router/placement/placement_policy.h"

namespace tandem::router {

struct RouterOptions {
  std::string router_id;
  std::string version;
  kv::BlockKey block_key;  // that blocks are named with; the fleet's
  // A decode node computes a prompt itself when it lacks at most this many tokens of it.
  int32_t local_prefill_tokens_max = 32;
  // A prefill node fetches a prompt's beginning from a node that holds at least this many tokens
  // more of it, where that is predicted to take less time than computing them; 0 = never.
  int32_t fetch_tokens_min = 1;
  absl::Duration heartbeat_interval = absl::Seconds(1);
  // A node that sends nothing for this long is lost.
  absl::Duration node_lost_after = absl::Seconds(4);
  // Longest time in kQueued; then kUnavailable or kResourceExhausted.
  absl::Duration queue_deadline = absl::Seconds(60);
  // The same while no decode node has ever joined; then kUnavailable.
  absl::Duration no_node_deadline = absl::Seconds(5);
  // What one level of priority is worth in the queue: a sequence of priority 0 passes one of
  // priority 1 that is older by less than this. All levels together are worth a quarter of the
  // queue deadline at most.
  absl::Duration priority_level = absl::Seconds(1);
  // From StartDecode to Reserved or Refused; then the decode leg is retried.
  absl::Duration reserve_deadline = absl::Seconds(10);
  // From Reserved until the prompt's KV is installed; then the prefill leg is retried.
  absl::Duration prefill_deadline = absl::Seconds(120);
  // A prompt waits in the queue while every prefill node is predicted to compute for longer than
  // this before it begins with it; 0 = prompts wait in prefill nodes, however long.
  absl::Duration prefill_wait_max = absl::Seconds(10);
  // Of requests that come with none.
  ServiceTier default_tier;
  // Between two tokens; then the decode leg is retried.
  absl::Duration token_deadline = absl::Seconds(60);
  int attempts_max = 4;      // placements of one sequence
  int64_t queue_max = 8192;  // sequences that wait for placement; more: kResourceExhausted
  // Sequences, running and waiting, and the bytes that their requests may come to hold
  // (RequestInput::HeldBytesMax); more: kResourceExhausted, and kInvalidArgument for a request that
  // alone may hold more.
  int64_t requests_max = 65536;
  int64_t request_bytes_max = int64_t{8} << 30;
  int64_t nodes_max = 4096;  // joined nodes; more: kResourceExhausted
  // Prefix index entries, at most 46 bytes each. At the bound, the index forgets those that no
  // placement used recently.
  int64_t index_blocks_max = 16 << 20;
  PlacementPolicy placement = PlacementPolicy::kCost;
  // Nodes that lend also do so where that is predicted to raise the fleet's throughput
  // (router/core/loan_planner.h). It has no flag: simulations compare both.
  bool plan_loans = true;
  // Placements tell what was weighed, for traces.
  bool explains_placements = false;
  // Allows nodes with different numerics ids but the same block contents to exchange KV. Answers
  // are then not reproducible, and say so.
  bool allow_mixed_numerics = false;
};

}  // namespace tandem::router
