// One node that has joined this router: what it registered with, what it has said since, what the
// fleet knows of it beside that, and this router's own legs on it.
//
// Thread safety: none; the Fleet owns it, on the core's strand.
// Invariants: what its place in the orders depends on (LoadOrder) is changed by the Fleet alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/cost/link_cost.h"
#include "common/cost/step_cost.h"
#include "common/request/queue_order.h"
#include "router/fleet/node_key.h"
#include "router/fleet/node_record.h"
#include "router/fleet/node_slot.h"
#include "router/fleet/prompt_work.h"
#include "router/fleet/read_tokens.h"
#include "tandem/v1/client.pb.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

inline NodeGroup GroupOf(v1::NodeRole role) {
  if (role == v1::NODE_ROLE_PREFILL) return kPrefillNodes;
  return role == v1::NODE_ROLE_DECODE ? kDecodeNodes : kNoGroup;
}

// KV transfers that failed from one joined node to another since the last one that did not.
struct TransferFailures {
  int in_a_row = 0;           // of prompts' KV
  bool fetch_failed = false;  // or brought nothing
  absl::Time backoff_until = absl::InfinitePast();
};

// The KV transfers from one joined node to another.
struct NodePair {
  v1::NodePairStatus status;                    // without what `cost` tells
  cost::LinkCost cost;                          // of the time on the wire
  absl::Time sampled = absl::InfiniteFuture();  // the last one of `cost`
};

// What a debtor has reported of the link to one of its creditors.
struct CreditorLink {
  cost::CreditorProfile cost;
  absl::Time reported;
  // When a report last had new samples of these.
  absl::Time blocks_sampled = absl::InfiniteFuture(), asked = absl::InfiniteFuture();
};

// The longest name of a transport. A report with a longer one is nonsense, and is not kept.
inline constexpr size_t kTransportNameMax = 64;

// Percent of what other nodes lend that prompts beyond their nodes' pools may need together, and
// one of them alone: loans are whole units, and creditors keep blocks for their own sequences.
inline constexpr int64_t kBorrowedShareMax = 75;

struct Node {
  static constexpr int64_t kStepRows = 2048;  // of a node that does not say

  // ---- what it registered with
  NodeKey key;
  NodeSlot slot = 0;  // the fleet's
  NodeId id;
  Incarnation incarnation;
  v1::NodeRole role = v1::NODE_ROLE_UNSPECIFIED;
  std::string host;
  std::string transfer_address;
  int32_t context_tokens = 0;
  int32_t block_tokens = 0;
  int64_t num_blocks = 0;
  int32_t max_sequences = 0;     // 0 = not limited
  int32_t max_batch_tokens = 0;  // rows of its largest step; 0 = it does not say
  request::QueueOrder queue_order = request::QueueOrder::kPriority;
  std::string numerics_id;
  std::string lending_address;  // empty: it neither lends nor borrows
  bool lends_over_tcp = false;  // that has a part for debtors of other hosts
  int64_t lend_blocks_max = 0;  // that it lends at most
  int32_t lending_unit_tokens = 0;
  double kv_bytes_per_token = 0;

  // ---- what it has said since
  bool draining = false;
  absl::Time last_heard;
  uint64_t last_sequence_number = 0;
  std::string transport;  // of the last KV transfer; empty before
  v1::NodeLoad load;      // as last reported; an empty pool before
  v1::NodeCounters counters;
  int64_t blocks_lendable = 0;                       // of its running sequences, as last reported
  std::optional<cost::StepProfile> step_cost;        // as last reported
  std::optional<cost::StorageProfile> storage_cost;  // likewise
  // When a report last had new samples of these; what counts of step_cost if less (ADR 0103).
  absl::Time step_sampled = absl::InfiniteFuture();
  absl::Time host_read_sampled = absl::InfiniteFuture(), disk_read_sampled = absl::InfiniteFuture();
  std::optional<cost::StepProfile> faded_step_cost;
  // As a debtor, by creditor; only creditors that are joined. Bound: Fleet::kDebtsMax.
  std::map<NodeSlot, CreditorLink> creditor_links;

  // ---- what the fleet knows of it beside that
  // Of a node of its role, for as long as it has reported none that predicts.
  const cost::StepProfile* default_cost = nullptr;
  NodeRecord record;  // how far what the node says was true
  // Of a node that borrows: what all others that can lend to it lend at most.
  int64_t borrow_blocks_max = 0;
  // What other nodes can still lend to a leg here whose prompt is larger than the pool: a part of
  // what those without such legs lend, less what legs elsewhere need of it.
  int64_t borrow_blocks_now = 0;
  // Bound: one for each joined node.
  std::map<NodeSlot, NodePair> links_in;  // by sender; only senders that are joined
  std::map<NodeId, TransferFailures> failures_in;

  // ---- this router's own legs on it
  int64_t legs = 0;
  // The longest steps that these legs allow, each with the number of its legs.
  // Bound: the service tiers (kServiceTiersMax, 16, and the default).
  std::map<absl::Duration, int64_t> step_goals;
  int64_t blocks_unconfirmed = 0;    // asked for, not yet answered Reserved or Refused
  int64_t blocks_unreported = 0;     // reserved since the last load report
  int64_t legs_beyond_pool = 0;      // whose prompts are larger than the pool
  int64_t prefill_tokens_ahead = 0;  // planned or running prefill legs' uncached tokens
  PromptWork work;                   // of those tokens; of a decode node, the prompts it computes

  // Whether this node's KV is of use to a sequence of `debtor`, which can ask it about lent blocks.
  bool CanLendTo(const Node& debtor) const {
    return numerics_id == debtor.numerics_id && (lends_over_tcp || host == debtor.host);
  }
  // The longest sequence the node can ever hold, with what it can borrow.
  int64_t capacity_tokens() const {
    return std::min<int64_t>(context_tokens, (num_blocks + borrow_blocks_max) * block_tokens);
  }
  // The longest prompt, with room for one more token, that a request may come with. A sequence may
  // grow beyond it.
  int64_t prompt_capacity_tokens() const {
    const int64_t borrowed = borrow_blocks_max * kBorrowedShareMax / 100;
    return std::min<int64_t>(context_tokens, (num_blocks + borrowed) * block_tokens);
  }
  // The blocks that the node needs at once for a prompt and one more token. It takes in a prompt
  // that is larger than its pool piece by piece (common/node/sequence_scheduler.h).
  int64_t blocks_to_start(int64_t prompt_tokens) const {
    const int64_t blocks = blocks_for(prompt_tokens + 1);
    return blocks > num_blocks ? (num_blocks + 1) / 2 : blocks;
  }
  int64_t blocks_for(int64_t tokens) const { return (tokens + block_tokens - 1) / block_tokens; }
  // Blocks that a prompt needs beyond the node's pool: other nodes have to lend them.
  int64_t blocks_beyond(int64_t prompt_tokens) const {
    return std::max<int64_t>(0, blocks_for(prompt_tokens + 1) - num_blocks);
  }
  // Blocks that a new leg can get now, as far as this router knows.
  int64_t blocks_available() const {
    return load.blocks_free() + load.blocks_cached() - blocks_unconfirmed - blocks_unreported;
  }
  // A report is late but counts other routers' legs; this router's own legs are known at once. So
  // the larger figure counts.
  int64_t sequences() const {
    return std::max(load.sequences_running() + load.sequences_waiting(), legs);
  }
  int64_t prefill_tokens_waiting() const {
    return std::max(load.prefill_tokens_waiting(), prefill_tokens_ahead);
  }
  // The longest step that all of this router's legs on it allow.
  absl::Duration step_goal() const {
    return step_goals.empty() ? absl::InfiniteDuration() : step_goals.begin()->first;
  }
  // What its steps cost, as far as is known.
  const cost::StepProfile& profile() const;
  // Whether the node has said what its steps cost.
  bool knows_its_cost() const;
  // Rows of a prompt in one step; they decide how often the fixed part of a step counts.
  int64_t step_rows() const { return max_batch_tokens > 0 ? max_batch_tokens : kStepRows; }
  // Predictions, in microseconds, finite and at least 0. Rows [first_row, first_row + rows) of a
  // prompt, computed alone:
  double PromptUs(int64_t first_row, int64_t rows) const;
  // A step that generates a token for each of `sequences`, whose rows attend to `attended` tokens.
  double GenerateUs(int64_t sequences, int64_t attended) const;
  // A new prompt, of which `compute_us` is to be computed: its place among this router's prompts.
  absl::Time RankOf(const request::Urgency& urgency, double compute_us, absl::Time now) const;
  // Until the node begins with a new prompt of this rank, if prompts of other routers are as long
  // as this one. Their ranks are not known: all of them count as before it.
  double WaitUs(int64_t prompt_tokens, absl::Time rank, absl::Time now) const;
  // The same of a prompt of which the node holds nothing, and 0 until the node has reported what
  // steps cost.
  absl::Duration PredictedPrefillWait(int64_t prompt_tokens, const request::Urgency& urgency,
                                      absl::Time now) const;
  // The same rows, as a part of a step that is computed in any case.
  double RowsUs(int64_t first_row, int64_t rows) const;
  // Half of the step that runs now, if one does: what a message waits for on average.
  double HalfStepUs() const;
  // Prompts whose KV this node sends, or will send when it has computed them.
  int64_t prompts_sent() const { return role == v1::NODE_ROLE_PREFILL ? work.prompts() : 0; }
  // Reading the KV of these tokens from its storage, each tier's at its rate.
  double ReadUs(const ReadTokens& tokens, absl::Time now) const;
  // Tokens that its sequences hold, those that this router has just placed included.
  int64_t tokens_held() const {
    return (load.blocks_used() + blocks_unconfirmed + blocks_unreported) * block_tokens;
  }
  bool has_sequence_slot() const { return max_sequences <= 0 || sequences() < max_sequences; }

  // How busy the node is with legs of its kind, in [0, 1]; 0 = nothing is ahead of a new one. For a
  // prefill node it counts prompt tokens that wait; for a decode node, sequences that run or wait.
  double queue_fraction() const;
  // The fraction of the pool that is free or can be reclaimed.
  double free_fraction() const;
  // What decides between nodes for any request: less is better. Of a prefill node, the predicted
  // time of the prompts that wait, in seconds; a decode node's pool counts half as much as its
  // queue.
  double load_score() const;
  // The legs that the node takes now.
  NodeGroup group() const { return draining ? kNoGroup : GroupOf(role); }
};

}  // namespace tandem::router
