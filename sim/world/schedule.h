// A schedule: everything that one simulated run depends on, as data. It is drawn from a seed,
// printed, parsed again, and made smaller while it still fails. Times are microseconds of virtual
// time since the start, so that a printed schedule is exact. Thread safety: plain values and pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::sim {

// What can go wrong. Processes are numbered routers first, then prefill nodes, then decode nodes.
enum class FaultKind {
  kCrash,            // of `target`, as by kill -9; starts again after `lasts_us`
  kPause,            // of `target`, as by SIGSTOP and SIGCONT
  kSlow,             // `target` takes `amount` times as long: a node for its steps, a router for
                     // messages and calls, both from tick to tick
  kPartition,        // nothing passes between `target` and `other`
  kOneWayPartition,  // nothing passes from `target` to `other`
  kSlowLink,         // KV from `target` to `other` at `amount` bytes a second
  kCutStream,        // the control stream between `target` (a router) and `other` (a node) breaks
  kLoseFrames,       // one KV frame in `amount`, anywhere
  kDuplicateFrames,
  kCorruptFrames,  // one byte of the payload
  kDelayFrames,    // by up to `amount` microseconds each, so that they overtake each other
  kCorruptBlock,   // a byte of a KV block in the memory of `target`, or on its disk
  kDrain,          // SIGTERM to the node `target`, which ends when idle and starts again
  kHangStorage,    // the storage of the node `target` carries out nothing for `lasts_us`
};
inline constexpr int kFaultKinds = 14;
absl::string_view FaultName(FaultKind kind);

struct Fault {
  int64_t at_us = 0;
  FaultKind kind = FaultKind::kCrash;
  int64_t target = 0, other = 0;
  int64_t lasts_us = 0;
  int64_t amount = 0;
};

struct SimRequest {
  int64_t at_us = 0;
  int64_t router = 0;         // asked first
  int64_t family = 0;         // requests of one family begin alike
  int64_t shared_tokens = 0;  // of the prompt: the family's beginning
  int64_t own_tokens = 1;     // of the prompt: this request's own
  int64_t own_seed = 0;
  int64_t max_tokens = 1;
  int64_t sampled = 0;  // 1: temperature 1; 0: greedy
  int64_t seed = 0;
  int64_t salt = 0;     // which cache salt
  int64_t answers = 1;  // n
  int64_t beams = 0;    // not 0: a beam search of this width
  int64_t priority = 0;
  int64_t cancel_us = 0;  // the client disconnects this long after it asked; 0 = never
  // Not 0: a client that disconnects asks again at once, under the same request id, with another
  // prompt of its own: the one of this seed.
  int64_t again_seed = 0;
  // Not 0: a client that has its answer goes on, under the same request id: its next prompt is the
  // one before, the answer and so many tokens. REQUIRES: one answer, no beams.
  int64_t turn_tokens = 0;
  int64_t logprobs = 0;  // top ones of each token; their events name legs in full
  // Goals of its service tier; 0 = none. A client that was refused as late asks again without any.
  int64_t ttft_us = 0, gap_us = 0;
  int64_t refuse_late = 0;
};

struct Topology {
  int64_t routers = 1, prefill_nodes = 1, decode_nodes = 1;
  int64_t blocks_per_node = 64;
  int64_t block_tokens = 8;
  int64_t max_batch_tokens = 64;
  int64_t max_sequences = 8;
  int64_t eos_every = 0;
  int64_t local_prefill_tokens = 16;
  int64_t frame_blocks = 1;        // block layers of one KV frame
  int64_t bytes_in_flight = 4096;  // from a node to one peer
  int64_t step_us = 500;           // a step takes up to this
  int64_t control_us = 300;        // a control message takes up to this
  int64_t kv_us = 200;             // a KV frame takes up to this beside its bytes
  int64_t kv_bytes_per_second = 100'000'000;
  int64_t hop_us = 50;          // between a node's engine and transfer threads, up to this
  int64_t rendezvous = 1;       // payloads travel apart from their headers, from memory
  int64_t hold_frames = 0;      // a partition holds frames back instead of losing them
  int64_t reuse_addresses = 0;  // a restarted process is reached where its predecessor was
  int64_t clock_skew_us = 0;    // clocks differ by up to this
  int64_t drain_us = 500'000;   // a node's --drain-timeout
  // Not 0: a step takes exactly step_us, and this for each of its rows, as cost::StepProfile says.
  int64_t row_us = 0;
  int64_t itl_slo_us = 0;   // a node's --itl-slo
  int64_t placement = 0;    // index of router::kPlacementPolicies
  int64_t disk_blocks = 0;  // that each node's disk holds; 0 = nodes have none
  int64_t host_blocks = 0;  // that each node's tier in host memory holds; 0 = nodes have none
  int64_t disk_us = 200;    // a command to storage takes up to this
  int64_t disk_fails = 0;   // one save in so many is refused; 0 = none
  int64_t lend_blocks = 0;  // that each node lends at most; 0 = nodes neither lend nor borrow
  int64_t unit_blocks = 1;  // of one unit: what can be lent
  int64_t plan_loans = 1;   // routers plan loans
  // By how many percent a step takes longer when a row's KV is partly lent.
  int64_t lent_step_percent = 0;
  // Not 0: a third layer looks back window_tokens tokens, and has memory for so many blocks.
  int64_t window_slots = 0;
  int64_t window_tokens = 1;
  // Bounds of each router: entries of its prefix index, and sequences; 0 = as RouterOptions.
  int64_t index_blocks = 0;
  int64_t router_sequences = 0;
  int64_t processes() const { return routers + prefill_nodes + decode_nodes; }
};

struct Schedule {
  uint64_t seed = 0;  // of all random choices while it runs
  Topology topology;
  std::vector<SimRequest> requests;  // by at_us
  std::vector<Fault> faults;         // by at_us
};

// How long the fault lasts. A node that drains has its drain timeout before `lasts_us`.
int64_t LastsUs(const Fault& fault, const Topology& topology);

// The window slots that one sequence needs.
int64_t LeastWindowSlots(const Topology& topology);

// Draws topology, kinds of fault, requests and faults from the seed.
Schedule DrawSchedule(uint64_t seed);

// One line each for the seed, the topology, every request and every fault.
std::string ToText(const Schedule& schedule);
std::string ToText(const Fault& fault);
// kInvalidArgument names the line, the field and what was expected.
absl::StatusOr<Schedule> ParseSchedule(absl::string_view text);

}  // namespace tandem::sim
