// A constraint over one vocabulary, and where a sequence stands in it.
//
// Mask() says which tokens may come next: those whose bytes lead from where the sequence stands to
// somewhere the constraint can still be satisfied. State is a function of the tokens read, so a
// sequence that moves to another node continues after replaying them. Masks and configurations are
// remembered by the constraint, for all sequences that share it, within bounds.
//
// Thread safety: a Constraint from any thread; a Matcher by its owner (copies are independent).
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/guided/program.h"
#include "common/guided/state_graph.h"
#include "common/guided/vocabulary.h"

namespace tandem::guided {

struct TokenMask {
  std::vector<uint32_t> words;  // Vocabulary::mask_words()
  int32_t count = 0;            // tokens allowed
};

class Constraint {
 public:
  // What one constraint may remember: more than the first starts afresh before the next token,
  // more than the second in one step is an error.
  static constexpr size_t kGraphBytesKept = size_t{32} << 20;
  static constexpr size_t kGraphBytesMax = size_t{256} << 20;
  static constexpr size_t kMaskBytesMax = size_t{32} << 20;
  // Bound on the work of one mask (StateGraph::work), some seconds' worth.
  static constexpr uint64_t kMaskWorkMax = 400000000;

  // A place in the constraint's state graph.
  struct Place {
    std::shared_ptr<StateGraph> graph;  // shared: a graph that was outgrown lives while it is used
    ConfigId config = kDeadConfig;
  };

  Constraint(Program program, std::shared_ptr<const Vocabulary> vocabulary);

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  Place Start();
  // False, and nothing changes, when the constraint forbids `bytes` there.
  bool Advance(Place& place, absl::string_view bytes);
  // kInvalidArgument when the constraint is too ambiguous to follow.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Mask(Place& place);
  bool MayEnd(const Place& place);
  bool CanContinue(const Place& place);
  size_t bytes() const;

 private:
  struct KeptMask {
    std::shared_ptr<const TokenMask> mask;
    std::list<ConfigId>::iterator use;
  };

  // Moves `place` to the current graph, which is replaced when it has grown too large.
  void Refresh(Place& place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<const TokenMask>> ComputeMask(StateGraph& graph,
                                                               ConfigId config) const;
  void Keep(ConfigId config, std::shared_ptr<const TokenMask> mask)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Program program_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<StateGraph> graph_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ConfigId, KeptMask> masks_ ABSL_GUARDED_BY(mutex_);  // of graph_
  std::list<ConfigId> uses_ ABSL_GUARDED_BY(mutex_);                       // most recent first
};

// One sequence's way through a constraint.
class Matcher {
 public:
  // Outputs that end the answer are chosen by these rules: a token of `eos_token_ids` is allowed
  // once the constraint may end and at least `min_tokens` tokens are out, never under `ignore_eos`;
  // and whenever nothing else is allowed.
  struct EndRules {
    std::vector<TokenId> eos_token_ids;
    int64_t min_tokens = 0;
    bool ignore_eos = false;
  };

  // `constraint` is shared by all sequences that have it.
  Matcher(std::shared_ptr<Constraint> constraint, EndRules rules);

  // kInvalidArgument when the constraint does not allow `token` next.
  absl::Status Advance(TokenId token);
  // Bit i % 32 of word i / 32: token i may come next. Valid until the next Advance.
  // kInvalidArgument when the constraint is too ambiguous, or no token of the vocabulary can go on
  // and none can end the answer.
  absl::StatusOr<absl::Span<const uint32_t>> Allowed();
  // Nothing can follow: the answer is whole.
  bool complete();
  bool may_end();
  // An end token was read.
  bool ended() const { return ended_; }

 private:
  bool IsEnd(TokenId token) const;

  // Shared: sequences of one request, and the cache, hold it.
  std::shared_ptr<Constraint> constraint_;
  EndRules rules_;
  Constraint::Place place_;
  int64_t tokens_ = 0;
  bool ended_ = false;
  bool mask_known_ = false;
  // Shared with the constraint, or a copy of it with end tokens added.
  std::shared_ptr<const TokenMask> mask_;
};

}  // namespace tandem::guided
