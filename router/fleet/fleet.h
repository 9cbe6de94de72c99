// The nodes that have joined this router (router/fleet/node.h): it lets them join, keeps what they
// report and what this router places on them, and predicts what transfers between them take.
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
#include "common/cost/copy_profile.h"
#include "common/cost/default_profile.h"
#include "common/cost/link_cost.h"
#include "common/cost/step_cost.h"
#include "common/request/queue_order.h"
#include "router/fleet/load_order.h"
#include "router/fleet/model_identity.h"
#include "router/fleet/node.h"
#include "router/fleet/node_key.h"
#include "router/fleet/node_slot.h"
#include "router/fleet/prompt_work.h"
#include "router/fleet/read_tokens.h"
#include "tandem/v1/client.pb.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

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
  double UsualAskUs(bool same_host) const;
  // The largest fetch from `holder` to `to` where a fetch may take `limit_us`.
  double FetchedBytesMax(const Node& holder, const Node& to, double limit_us) const;
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
  // Blocks of a prompt that nodes beside these two can lend both of them now, as borrow_blocks_now
  // of `decode` counts them for a leg that is placed there.
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
