// The router's decisions as one state machine: membership, prefix index, placement, and every
// request's life over its two legs. Fed by clients' submissions, nodes' messages and time; answers
// with commands for nodes and events for clients. No thread, clock, socket or random device inside
// (Random is a seam).
//
// One request:
//   Submit ─▶ Queued ─place(P, D)─▶ Reserving ─Reserved─▶ Prefilling ─first token─▶ Installing
//   ─Installed─▶ Generating ─▶ Done
//                ▲                      │ Refused: next best D, else back to the queue     │
//                └── decode lost: prompt + delivered tokens, next attempt ◀────────────────┴────
//                Aborted / Failed
//   prefill lost: NewEpoch to D, Prefill to another P, same lease. Local prefill (short or cached
//   prompt, no prefill nodes): Reserving → Generating.
//
// A request of several sequences is one such life each, under one id: the lowest running sequence
// leads, the others wait until its prompt is installed and then follow it to its decode node, where
// the prompt's full blocks are shared (docs/adr/0009-sequences-follow-their-leader.md).
//
// Thread safety: none; who has the router's turn (or the simulator) makes every call.
// Invariants: a client sees each token index of each sequence once, in order, and for each sequence
// exactly one Done, or for the whole request one Failed; every request has a deadline in every
// state; the index and the queues are bounded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/request/guided_params.h"
#include "common/request/sampling_params.h"
#include "common/runtime/random.h"
#include "tandem/v1/client.pb.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

// One stream of one node; a node that reconnects gets a new key.
using NodeKey = StrongId<struct NodeKeyTag, uint64_t>;

// What nodes must serve to join: this router's model.
struct ModelIdentity {
  std::string name;  // the checkpoint's own
  std::string fingerprint;
  int32_t vocab_size = 0;
  int32_t context_tokens = 0;
  // What clients may call it beside its own name; the first is what they are told.
  std::vector<std::string> served_names;
  bool mixed_numerics = false;  // as RouterOptions has it; answers say so

  const std::string& served_name() const {
    return served_names.empty() ? name : served_names.front();
  }
  bool Serves(const std::string& asked) const {
    return asked == name ||
           std::find(served_names.begin(), served_names.end(), asked) != served_names.end();
  }
};

struct RouterOptions {
  std::string router_id;
  std::string version;
  int32_t local_prefill_tokens_max = 32;  // uncached prompt tokens a decode node computes itself
  absl::Duration heartbeat_interval = absl::Seconds(1);
  absl::Duration node_lost_after = absl::Seconds(4);  // nothing heard
  absl::Duration lease_time = absl::Seconds(10);
  absl::Duration queue_deadline =
      absl::Seconds(60);  // Queued longer: kUnavailable or kResourceExhausted
  absl::Duration no_node_deadline =
      absl::Seconds(5);  // Queued while no decode node has ever joined: kUnavailable
  absl::Duration reserve_deadline = absl::Seconds(10);   // Run without Reserved or Refused
  absl::Duration prefill_deadline = absl::Seconds(120);  // Reserved to the first token, installed
  absl::Duration token_deadline =
      absl::Seconds(60);     // generating without any token: the decode leg is retried
  int attempts_max = 4;      // placements of one request
  int64_t queue_max = 8192;  // requests waiting for placement; more: kResourceExhausted
  int64_t requests_max = 65536;
  int64_t nodes_max = 4096;
  int64_t index_blocks_max =
      4 << 20;  // prefix index entries; least recently used nodes' entries go first
  // Nodes of different numerics ids whose blocks hold the same may exchange KV. Answers are then
  // not reproducible, and say so.
  bool allow_mixed_numerics = false;
  bool pick_power_of_two = false;  // place by the better of two random pairs instead of the best
};

// Beam search instead of sampling: router/core/beam_search.h.
struct BeamParams {
  int32_t width = 1;
  double length_penalty = 1.0;
  bool early_stopping = false;
};

// A validated, tokenized request.
struct RequestInput {
  RequestId id;
  std::vector<TokenId> prompt;       // not empty
  request::SamplingParams sampling;  // seed set
  request::StopParams
      stop;  // max_tokens set; stop strings are matched by the caller, who then calls Finish
  std::vector<TokenId> eos_token_ids;
  std::string cache_salt;
  request::GuidedParams guided;  // what the answer must look like; compiles
  int32_t sequence_index = 0;    // of the first sequence
  int32_t sequences = 1;         // answers, indices from sequence_index up
  int32_t priority = 0;          // lower is placed and computed earlier
  // The whole answer must be out by then, counted from Submit.
  absl::Duration answer_deadline = absl::InfiniteDuration();
  // Report the prompt's own log-probabilities, each with this many top ones.
  std::optional<int32_t> prompt_logprobs;
  std::optional<BeamParams> beams;  // `sequences` of the best are the answers
  // Not done before the prompt lies on the decode node, however short the answer: others share it.
  bool installs_prompt = false;
  uint32_t attempts_before =
      0;                 // legs of this name that are over; new ones are numbered from there
  std::string trace_id;  // of the client's tracing, for log lines; may be empty
  // False when max_tokens is only the default, "up to the context": it is then lowered to what the
  // largest decode node can hold instead of refusing the request.
  bool max_tokens_given = true;
};

// Log-probabilities of the prompt's tokens from the second on; before any TokensReady, if asked
// for.
struct PromptScored {
  std::vector<v1::GeneratedToken> tokens;
};
// Next tokens of one sequence, in order, each index exactly once.
struct TokensReady {
  int32_t sequence_index = 0;
  std::vector<v1::GeneratedToken> tokens;
};
// One sequence is complete. `usage`, `route` and `timing` are final; the prompt is in the usage of
// the first sequence alone.
struct RequestDone {
  int32_t sequence_index = 0;
  bool last = true;  // of the request: nothing follows
  request::FinishReason reason = request::FinishReason::kNone;
  v1::Usage usage;
  v1::Route route;
  v1::Timing timing;
};
// The request failed as a whole; nothing follows.
struct RequestFailed {
  absl::Status status;
};
using ClientEvent = std::variant<TokensReady, RequestDone, RequestFailed, PromptScored>;

struct RouterActions {
  std::vector<std::pair<NodeKey, v1::NodeCommand>> commands;
  std::vector<std::pair<RequestId, ClientEvent>> client_events;
  std::vector<std::pair<NodeKey, absl::Status>> disconnects;  // streams to end, with the reason
};

class RouterCore {
 public:
  // `random` outlives the core.
  static std::unique_ptr<RouterCore> Create(const RouterOptions& options,
                                            const ModelIdentity& model, Random& random);
  virtual ~RouterCore() = default;

  // kAlreadyExists for a running id; kResourceExhausted when full; kInvalidArgument when no node
  // could ever hold the request (names the largest); kUnavailable naming the missing kind of node
  // when there is none to place on and none joined within the queue deadline (arrives as
  // RequestFailed).
  virtual absl::Status Submit(RequestInput input, absl::Time now) = 0;
  // Ends a request: the client is gone or aborted it. All legs are aborted; a RequestDone with
  // `reason` follows for each running sequence. Unknown ids are ignored: idempotent.
  virtual void Finish(const RequestId& id, request::FinishReason reason, absl::Time now) = 0;
  // Ends one sequence: its stop string appeared (kStop). Otherwise as Finish.
  virtual void FinishSequence(const RequestId& id, int32_t sequence_index,
                              request::FinishReason reason, absl::Time now) = 0;

  // kFailedPrecondition when the model or numerics id differs (both named); kInvalidArgument for a
  // bad registration. A newer incarnation of a known node id replaces the older stream (a
  // disconnect action).
  virtual absl::StatusOr<v1::Welcome> NodeJoined(NodeKey key, const v1::Registration& registration,
                                                 absl::Time now) = 0;
  // Anything after the registration.
  virtual void OnNodeMessage(NodeKey key, const v1::NodeMessage& message, absl::Time now) = 0;
  virtual void NodeLost(NodeKey key, const absl::Status& why, absl::Time now) = 0;
  // Deadlines, heartbeat loss, queue retries. At least every 50 ms.
  virtual void OnTick(absl::Time now) = 0;

  virtual RouterActions TakeActions() = 0;
  virtual v1::GetStatusResponse GetStatus(absl::Time now) const = 0;
  // For the status: streams that were refused before the core heard of them, so far.
  virtual void SetStreamsRefused(int64_t count) = 0;
  // Of the fleet; empty while no node has joined.
  virtual std::string numerics_id() const = 0;
  // Tokens of the longest prompt and answer that can be served: the model's context, or less where
  // no decode node has room for as much.
  virtual int64_t context_tokens() const = 0;
  virtual int64_t requests_running() const = 0;
};

}  // namespace tandem::router
