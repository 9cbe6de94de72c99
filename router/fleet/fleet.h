// The nodes that have joined this router: their registration, their last load report, and the work
// that this router has placed on them since, which no report can show yet.
//
// Thread safety: none; the core owns it, on the core's strand.
// Invariants: at most one node per node id; all nodes share one block size and one numerics id (or,
// where mixed ones are allowed, the same block contents), fixed by the first node that joins an
// empty fleet; slots are dense, small, and reused after a node leaves; at most nodes_max nodes, and
// kLostNodesKept lost ones that status still shows.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/cost/default_profile.h"
#include "common/cost/link_cost.h"
#include "common/cost/step_cost.h"
#include "common/request/queue_order.h"
#include "router/fleet/load_order.h"
#include "router/fleet/model_identity.h"
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
  NodeKey key;
  NodeSlot slot = 0;
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
  int64_t lend_blocks_max = 0;  // that it lends at most
  int32_t lending_unit_tokens = 0;
  int64_t blocks_lendable = 0;    // of its running sequences, as last reported
  int64_t borrow_blocks_max = 0;  // of a node that borrows: what all others lend at most
  double kv_bytes_per_token = 0;

  bool draining = false;
  absl::Time last_heard;
  uint64_t last_sequence_number = 0;
  std::string transport;  // of the last KV transfer; empty before
  v1::NodeLoad load;      // as last reported; an empty pool before
  v1::NodeCounters counters;
  std::optional<cost::StepProfile> step_cost;        // as last reported
  std::optional<cost::StorageProfile> storage_cost;  // likewise
  // When a report last had new samples of these; what counts of step_cost if less (ADR 0103).
  absl::Time step_sampled = absl::InfiniteFuture();
  absl::Time host_read_sampled = absl::InfiniteFuture(), disk_read_sampled = absl::InfiniteFuture();
  std::optional<cost::StepProfile> faded_step_cost;
  // Of a node of its role, for as long as it has reported none that predicts.
  const cost::StepProfile* default_cost = nullptr;
  NodeRecord record;  // how far what the node says was true
  // Bound: one for each joined node.
  std::map<NodeSlot, NodePair> links_in;  // by sender; only senders that are joined
  std::map<NodeId, TransferFailures> failures_in;
  // As a debtor, by creditor; only creditors that are joined. Bound: Fleet::kDebtsMax.
  std::map<NodeSlot, CreditorLink> creditor_links;

  // This router's own legs on the node.
  int64_t legs = 0;
  // The longest steps that these legs allow, each with the number of its legs.
  // Bound: the service tiers (kServiceTiersMax, 16, and the default).
  std::map<absl::Duration, int64_t> step_goals;
  int64_t blocks_unconfirmed = 0;  // asked for, not yet answered Reserved or Refused
  int64_t blocks_unreported = 0;   // reserved since the last load report
  int64_t legs_beyond_pool = 0;    // whose prompts are larger than the pool
  // What other nodes can still lend to such a leg here: a part of what those without such legs
  // lend, less what legs elsewhere need of it. Set by the fleet.
  int64_t borrow_blocks_now = 0;
  int64_t prefill_tokens_ahead = 0;  // planned or running prefill legs' uncached tokens
  PromptWork work;                   // of those tokens; of a decode node, the prompts it computes

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

// A prefill node that gets a part of a prompt's KV from another node, beside computing it.
// Microseconds.
struct FetchTimes {
  int64_t tokens = 0;   // the first ones of those that are asked about, as many as come in time
  double fetch_us = 0;  // until their KV is there
  double saved_us = 0;  // of the rows that are not computed
  bool pays() const { return fetch_us < saved_us; }
};

class Fleet {
 public:
  static constexpr size_t kLostNodesKept = 64;

  // As large as a registration's figures: sums and squares fit into 64 bits.
  static constexpr int64_t kLoadFigureMax = std::numeric_limits<int32_t>::max();
  static constexpr int kDebtsMax = 64;  // a node has no more creditors at a time

  struct Options {
    int64_t nodes_max = 0;
    bool allow_mixed_numerics = false;
  };
  // `random` orders equally loaded nodes. It outlives the fleet.
  Fleet(const ModelIdentity& model, const Options& options, Random& random)
      : model_(model), options_(options), order_(random) {}

  // Whether a node may join, and the stream that it would replace: one of the same node id with the
  // same or an older incarnation. Errors: those of CheckRegistration; kFailedPrecondition if a
  // newer incarnation is connected, or if numerics id or block size differ from the fleet's (names
  // both); kResourceExhausted when the fleet is full. Changes nothing.
  absl::StatusOr<std::optional<NodeKey>> CheckJoin(NodeKey key,
                                                   const v1::Registration& registration) const;
  // REQUIRES: CheckJoin was OK and the node it replaces was removed.
  Node& Join(NodeKey key, const v1::Registration& registration, absl::Time now);
  // Removes the node; status shows it as lost for a while. Unknown keys are ignored.
  void Remove(NodeKey key);

  // nullptr when the node has not joined or has left. Valid until the node is removed.
  Node* Find(NodeKey key);
  const Node* Find(NodeKey key) const;
  // The joined node with the slot; nullptr if there is none.
  const Node* At(NodeSlot slot) const { return slot < by_slot_.size() ? by_slot_[slot] : nullptr; }
  // In order of node id.
  std::vector<const Node*> nodes() const;
  // Likewise by slot, without a copy; nullptr where a slot has no node. Valid until one joins.
  absl::Span<const Node* const> by_slot() const { return by_slot_; }
  bool empty() const { return by_key_.empty(); }
  int64_t size() const { return static_cast<int64_t>(by_key_.size()); }

  // The node takes no new work from now on.
  void SetDraining(Node& node);
  // A load report came. It includes all that the node confirmed before. Figures that cannot be are
  // replaced by the nearest that can, in [0, kLoadFigureMax]; of the debts kDebtsMax are kept.
  void OnLoad(Node& node, const v1::NodeLoad& load);
  // How many blocks of its sequences other nodes could keep; bounded as those of a load.
  void OnLendable(Node& node, int64_t blocks) {
    node.blocks_lendable = std::clamp<int64_t>(blocks, 0, kLoadFigureMax);
  }
  // These keep the figures of this router's own legs on a node. Nodes that have left are ignored.
  // `step_goal`: the longest step of the node that the leg allows; the same when it ends.
  void DecodePlaced(NodeKey key, int64_t blocks,
                    absl::Duration step_goal = absl::InfiniteDuration());
  void DecodeReserved(NodeKey key, int64_t blocks);
  void DecodeEnded(NodeKey key, int64_t blocks_unconfirmed,
                   absl::Duration step_goal = absl::InfiniteDuration());
  // A leg whose prompt needs `blocks` beyond the node's pool began or ended. Two such prompts that
  // each hold half of what both need would wait for each other.
  void BeyondPoolPlaced(NodeKey key, int64_t blocks);
  void BeyondPoolEnded(NodeKey key, int64_t blocks);
  // `tokens`: the last ones of a prompt of `prompt_tokens`. Returns their predicted time and their
  // place in the node's order, which PrefillEnded takes back.
  PromptWork::Entry PrefillPlaced(NodeKey key, int64_t tokens, int64_t prompt_tokens,
                                  const request::Urgency& urgency = {});
  void PrefillEnded(NodeKey key, int64_t tokens, const PromptWork::Entry& work);
  // A decode node computes a prompt itself, which takes `us`, or has done so.
  PromptWork::Entry LocalPrefillBegan(NodeKey key, double us, const request::Urgency& urgency);
  void LocalPrefillEnded(NodeKey key, const PromptWork::Entry& work);
  // The time of the call that the core handles. Never goes back.
  void SetNow(absl::Time now) { now_ = std::max(now_, now); }
  absl::Time now() const { return now_; }
  // What a node's steps cost, as it says. One that predicts nothing, or more than can be, is shown
  // in the status and not used.
  void OnStepCost(Node& node, const cost::StepProfile& profile);
  // What reading and writing its storage costs, as it says.
  void OnStorageCost(Node& node, const cost::StorageProfile& profile);
  // What the node's link to a creditor costs, as it says. Creditors that have not joined, or joined
  // as another incarnation, are ignored; of more than kDebtsMax the one reported longest ago goes.
  void OnCreditorLink(Node& debtor, const NodeId& creditor, Incarnation incarnation,
                      const cost::CreditorProfile& cost);
  // Moving `bytes` between two nodes whose own transfers are not known, of one host or of two, and
  // a token's questions to a creditor likewise. In microseconds, finite and at least 0.
  double UsualTransferUs(double bytes, bool same_host) const;
  // The largest fetch from `holder` to `to` where a fetch may take `limit_us`.
  double FetchedBytesMax(const Node& holder, const Node& to, double limit_us) const;
  double UsualAskUs(bool same_host) const;
  // The index said that the node holds `claimed` tokens of a prompt; it had `found`.
  void PrefixChecked(NodeKey key, int64_t claimed, int64_t found);
  // A leg failed there, and neither its request nor another node was at fault. Without effect where
  // the node had no room or leaves, or found a block damaged: that may have come from another node.
  void LegFailed(NodeKey key, const absl::Status& why);
  // A first token came after `took`; `predicted` when it was placed.
  void FirstTokenCame(NodeKey computed_by, absl::Duration predicted, absl::Duration took);

  // The nodes that take new work, by load.
  const LoadOrder& order() const { return order_; }
  // Slots of joined nodes are below this.
  size_t slots() const { return next_slot_; }

  // Nodes that have sent nothing for longer than `lost_after`, in order of node id.
  std::vector<NodeKey> Silent(absl::Time now, absl::Duration lost_after) const;
  // What nodes said in this time may not have been read yet: it counts as no node's silence.
  void ForgiveSilence(absl::Duration time, absl::Time now) {
    for (auto& [id, node] : by_id_) node->last_heard = std::min(now, node->last_heard + time);
  }

  // Of the joined nodes; empty and 0 when there are none. Where mixed numerics are allowed, it
  // names the contents of blocks and is no node's own id.
  const std::string& numerics_id() const { return numerics_id_; }
  // Whether numerics_id() stands for several ids. Commands then carry it, and nodes name blocks by
  // it.
  bool mixes_numerics() const { return !kv_contents_.empty(); }
  int32_t block_tokens() const { return block_tokens_; }
  // Changes whenever numerics_id or block_tokens may have changed: older block hashes are then
  // void.
  uint64_t generation() const { return generation_; }
  // The longest prompt, with room for one more token, that a request may come with; 0 when there is
  // no decode node.
  int64_t decode_prompt_capacity_tokens() const {
    return decode_prompt_capacities_.empty() ? 0 : *decode_prompt_capacities_.rbegin();
  }
  // The longest sequence any decode node (draining ones too) can hold; 0 when there is none.
  int64_t decode_capacity_tokens() const {
    return decode_capacities_.empty() ? 0 : *decode_capacities_.rbegin();
  }
  // Blocks of a prompt that nodes beside these two can lend now, as borrow_blocks_now of `decode`
  // counts them for a leg that is placed there.
  int64_t SpareBeside(const Node& prefill, const Node& decode, int64_t prompt_tokens) const;
  // Whether a node lends: what a decode node can hold then depends on the others.
  bool lends() const { return lends_; }
  // KV blocks of all decode nodes together.
  int64_t decode_blocks() const { return decode_blocks_; }
  bool decode_node_seen() const { return decode_node_seen_; }

  // A KV transfer from one node to another is complete: the receiver has installed it.
  void KvTransferDone(NodeKey from, NodeKey to, const v1::Installed& installed);
  void KvTransferDone(NodeKey from, NodeKey to, const v1::FetchedKv& fetched);
  // A KV transfer failed though both nodes have joined. After a few failures in a row the pair is
  // in backoff, each time for longer, until a KV transfer succeeds.
  void KvTransferFailed(NodeKey from, NodeKey to, absl::Time now);
  // A fetch that was tried brought nothing: the link may be too slow, or the holder had lost it.
  void FetchFailed(NodeKey from, NodeKey to);
  // Moving `bytes` from one node to another: by the pair's own transfers, else by the fleet's, else
  // by a default. In microseconds, finite and at least 0.
  double TransferUs(const Node& from, const Node& to, double bytes) const;
  // Tokens [first, first + tokens) of a prompt's KV from `holder`, which has `stored` of them, the
  // last ones, or all, in its storage, for a prompt on `to`. If not all are predicted to come
  // before the fetch is given up: as many whole blocks as are.
  FetchTimes Fetching(const Node& holder, const Node& to, int64_t first, int64_t tokens,
                      const ReadTokens& stored) const;
  // Whether the pair is in backoff.
  static bool InBackoff(const Node& from, const Node& to, absl::Time now);
  void FillStatus(absl::Time now, v1::GetStatusResponse& status) const;

 private:
  struct LostNode {
    v1::NodeStatus status;
    absl::Time last_heard;
  };
  // The median of what nodes of a role say that their steps cost, and when it was taken.
  struct MedianPrice {
    double us = 0;
    absl::Time at = absl::InfinitePast();
  };
  // Taking it looks at all nodes.
  static constexpr absl::Duration kMedianEvery = absl::Seconds(1);
  // REQUIRES: a node of the role has said what its steps cost, and the role has a group.
  double MedianPriceUs(v1::NodeRole role);
  // Brings what counts of the node's price up to date: with each report of its load.
  void FadeStepCost(Node& node);
  NodeSlot TakeSlot();
  // Of what nodes with legs beyond their pools lend, nothing is counted: they borrow themselves.
  static int64_t SpareOf(const Node& node);
  // The nodes that lend have changed: sets what each decode node may borrow.
  void UpdateBorrowing();
  // Changes the figures of a node that has joined, and its place in the order.
  void ChangeLoad(NodeKey key, absl::FunctionRef<void(Node&)> change);

  // Whether the node can serve beside those that are there. Errors as CheckJoin.
  absl::Status CheckNumerics(const v1::Registration& registration) const;

  const ModelIdentity model_;
  const Options options_;
  // Bound: nodes_max (4,096).
  absl::flat_hash_map<NodeKey, std::unique_ptr<Node>> by_key_;
  absl::btree_map<NodeId, Node*> by_id_;
  LoadOrder order_;
  // Bound: one for each joined decode node.
  absl::btree_multiset<int64_t> decode_capacities_;         // tokens
  absl::btree_multiset<int64_t> decode_prompt_capacities_;  // likewise
  // Bound: the slots in use at most at a time.
  std::vector<const Node*> by_slot_;
  std::vector<NodeSlot> free_slots_;
  NodeSlot next_slot_ = 0;
  std::string numerics_id_;
  std::string first_numerics_id_;  // the first node's own
  std::string kv_contents_;        // only where mixed numerics are allowed and the nodes name them
  int64_t kv_bytes_per_block_ = 0;
  int32_t block_tokens_ = 0;
  uint64_t generation_ = 0;
  bool decode_node_seen_ = false;
  bool lends_ = false;               // a node that did has joined
  int64_t blocks_beyond_pools_ = 0;  // that running legs need of other nodes
  absl::Time now_ = absl::InfinitePast();
  std::array<MedianPrice, kNodeGroups> median_prices_;
  // The last usable one of each role.
  std::array<cost::StepProfile, kNodeGroups> default_costs_ = {cost::DefaultStepProfile(),
                                                               cost::DefaultStepProfile()};
  std::array<double, 2> usual_ask_us_{};  // of two hosts, of one; 0: none was reported
  cost::LinkCost all_links_;
  absl::Time all_links_sampled_ = absl::InfiniteFuture();
  int64_t decode_blocks_ = 0;
  // Bound: kLostNodesKept (64), then the oldest goes.
  std::deque<LostNode> lost_;  // oldest first
};

}  // namespace tandem::router
