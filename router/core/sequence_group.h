// The sequences of one request: which of them are live, which one leads, and which wait for the
// leader's prompt. The leader computes the prompt; the others then follow it to its decode node and
// share the prompt's blocks (docs/adr/0009-sequences-follow-their-leader.md).
//
// Thread safety: none; RequestTable owns it.
// Invariants: every held sequence is live; the leader is the live sequence with the lowest serial;
// Find names exactly the live ones.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "router/core/beam_group.h"
#include "router/core/serial.h"
#include "router/fleet/node_key.h"

namespace tandem::router {

class SequenceGroup {
 public:
  // `first_index`: of the first sequence; those of the others rise by one.
  // `held_bytes`: what the request may come to hold.
  // `share` and `rank`: of its sequences in the admission queue.
  SequenceGroup(RequestId id, std::string trace_id, int32_t first_index, int64_t held_bytes,
                TenantShare share, absl::Time rank)
      : id_(std::move(id)),
        trace_id_(std::move(trace_id)),
        first_index_(first_index),
        held_bytes_(held_bytes),
        share_(std::move(share)),
        rank_(rank) {}

  const RequestId& id() const { return id_; }
  const std::string& trace_id() const { return trace_id_; }
  int32_t first_index() const { return first_index_; }
  int64_t held_bytes() const { return held_bytes_; }
  const TenantShare& share() const { return share_; }
  absl::Time rank() const { return rank_; }
  // In the admission queue its sequences wait behind those whose first token's goal is in reach:
  // it has no goal, or cannot meet it any more.
  bool late() const { return late_; }
  void set_late() { late_ = true; }
  // When its first token is wanted after it came. REQUIRES: none of its sequences is queued.
  absl::Duration first_token_goal() const { return first_token_goal_; }
  void set_first_token_goal(absl::Duration goal) {
    first_token_goal_ = goal;
    late_ = false;
  }

  // Adds the sequence with the next index.
  void Add(Serial serial) {
    by_index_.push_back(serial);
    live_.insert(serial);
    leader_ = *live_.begin();
  }
  void Remove(Serial serial, int32_t sequence_index) {
    held_.erase(serial);
    live_.erase(serial);
    leader_ = live_.empty() ? 0 : *live_.begin();
    by_index_[sequence_index - first_index_] = 0;
  }
  // Begins a step of a beam search: its sequences take the indices of the last step's.
  // REQUIRES: none is live.
  void ClearIndices() { by_index_.clear(); }

  // 0 when no live sequence has this index.
  Serial Find(int32_t sequence_index) const {
    const int64_t at = int64_t{sequence_index} - first_index_;
    return at >= 0 && at < static_cast<int64_t>(by_index_.size()) ? by_index_[at] : 0;
  }
  // By index; 0 for a sequence that has ended.
  const std::vector<Serial>& by_index() const { return by_index_; }
  const absl::btree_set<Serial>& live() const { return live_; }
  // REQUIRES: live() is not empty.
  Serial leader() const { return leader_; }

  // A held sequence waits until the leader's prompt is installed.
  void Hold(Serial serial) { held_.insert(serial); }
  void Unhold(Serial serial) { held_.erase(serial); }
  const absl::btree_set<Serial>& held() const { return held_; }

  // How many live sequences have a place on nodes; the request runs while one has.
  void CountPlaced(int change) { placed_ += change; }
  bool runs() const { return placed_ > 0; }

  // The decode node that last held the request's whole prompt.
  const std::optional<NodeKey>& home() const { return home_; }
  void set_home(std::optional<NodeKey> home) { home_ = home; }

  // The request's `prompt_tokens` are being computed. Counts them once.
  void CountPrompt(int64_t prompt_tokens) { prompt_tokens_ = prompt_tokens; }
  void CountGenerated(int64_t tokens) { generated_tokens_ += tokens; }
  // As RequestFailed's.
  int64_t computed_tokens() const { return prompt_tokens_ + generated_tokens_; }

  // nullptr unless the request is a beam search.
  BeamGroup* beams() const { return beams_.get(); }
  void set_beams(std::unique_ptr<BeamGroup> beams) { beams_ = std::move(beams); }
  // Whether sequences share blocks, now or in a later step.
  bool shares_blocks() const { return by_index_.size() > 1 || beams_ != nullptr; }

 private:
  const RequestId id_;
  const std::string trace_id_;
  const int32_t first_index_;
  const int64_t held_bytes_;
  const TenantShare share_;
  const absl::Time rank_;
  absl::Duration first_token_goal_;
  bool late_ = true;
  // Bound: kSequencesMax (128).
  std::vector<Serial> by_index_;  // [sequence index - first_index]; 0 = not running (any more)
  // Bound: kSequencesMax (128).
  absl::btree_set<Serial> live_;  // running or queued
  Serial leader_ = 0;             // the first of live_; each token asks for it
  // Bound: kSequencesMax (128).
  absl::btree_set<Serial> held_;
  int placed_ = 0;
  std::optional<NodeKey> home_;
  int64_t prompt_tokens_ = 0, generated_tokens_ = 0;  // computed so far
  std::unique_ptr<BeamGroup> beams_;
};

}  // namespace tandem::router
