// A constraint over one vocabulary, and the position of each sequence in it.
//
// Matcher::Allowed() tells which tokens may come next: those after which the constraint can still
// be satisfied. A position depends only on the tokens read, so a sequence that moves to another
// node replays its tokens there and continues. The constraint caches masks and configurations,
// within bounds, for all sequences that share it.
//
// Thread safety: any thread may use a Constraint. A Matcher belongs to one thread at a time; copies
// of it are independent.
// Owner: sequences and the ConstraintCache share a Constraint.
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
#include "common/guided/token_mask.h"
#include "common/guided/vocabulary.h"

namespace tandem::guided {

class Constraint {
 public:
  // Bounds on the cache of one constraint. When the state graph exceeds the first, the constraint
  // starts a new graph before the next token (one mask may take it to kGraphBytesMax).
  static constexpr size_t kGraphBytesCached = size_t{32} << 20;
  static constexpr size_t kMaskBytesMax = size_t{32} << 20;
  // Bounds on what Try follows: the bytes, and the work for choosing them. The latter does not
  // count masks, of which there are at most 11.
  static constexpr int kTryBytesMax = 512;  // a power of two: then it computes 11 masks
  static constexpr uint64_t kTryWorkMax = 8'000'000;

  // A position in the constraint's state graph.
  struct Place {
    std::shared_ptr<StateGraph> graph;  // shared: a replaced graph lives while sequences use it
    ConfigId config = kDeadConfig;
  };

  Constraint(Program program, std::shared_ptr<const Vocabulary> vocabulary);

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  Place Start();
  // Looks for places where a mask would cost too much: follows the text that the constraint can
  // read in the most ways, and keeps the masks that it meets, then searches other places
  // (TryPlaces). The thread that compiles a constraint calls this, so that a constraint that is too
  // ambiguous is refused before its request takes engine time. Where the search does not find such
  // a place, an answer that reaches it fails there. Every Constraint of one program and vocabulary
  // gives the same result.
  // Errors: those of Mask, also where a text has more than kThreadsMax readings.
  absl::Status Try();
  // Reads `bytes`. False, and `place` is unchanged, when the constraint forbids them there, or when
  // reading them is charged more than kMaskWorkMax (StateGraph::charged): so it does not depend on
  // what other sequences have read. Adds to `work`, unless it is null, what it took: in
  // StateGraph::work, and one for each byte; at least the charge where that was too much.
  bool Advance(Place& place, absl::string_view bytes, uint64_t* work = nullptr);
  // The tokens allowed at `place`. `work`: as for Advance. Errors: kInvalidArgument when the
  // constraint is too ambiguous to follow.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Mask(Place& place, uint64_t* work = nullptr);
  // The same if it was computed before and is still cached; null otherwise.
  std::shared_ptr<const TokenMask> KnownMask(const Place& place);
  // Whether the text read so far satisfies the constraint, and whether another byte may follow.
  bool MayEnd(const Place& place);
  bool CanContinue(const Place& place);
  // The memory of the cache, in bytes.
  size_t bytes() const;

 private:
  struct CachedMask {
    std::shared_ptr<const TokenMask> mask;
    std::list<ConfigId>::iterator use;
  };

  absl::Status FollowMostAmbiguous();
  // Replaces the current graph if it is too large, and moves `place` to the current graph. Returns
  // the work that this took.
  uint64_t Refresh(Place& place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The cached mask of a configuration of graph_; null when there is none.
  std::shared_ptr<const TokenMask> FindMask(ConfigId config) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The step from `config` with the most threads; kDeadConfig when no byte may follow.
  static ConfigId StepToMostAmbiguous(StateGraph& graph, ConfigId config);
  void CacheMask(ConfigId config, std::shared_ptr<const TokenMask> mask)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Program program_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<StateGraph> graph_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ConfigId, CachedMask> masks_ ABSL_GUARDED_BY(mutex_);  // of graph_
  std::list<ConfigId> uses_ ABSL_GUARDED_BY(mutex_);                         // most recent first
};

// The position of one sequence in a constraint.
//
// Advance and Allowed do their work at once: at most some milliseconds for one token. Where many
// tokens are to be read, or many matchers share a thread, Defer, CatchUp and PrepareMask do the
// same in pieces.
class Matcher {
 public:
  // When an end-of-sequence token is allowed: once the constraint may end, the answer has at least
  // `min_tokens` tokens and `ignore_eos` is false; and whenever no other token is allowed.
  struct EndRules {
    std::vector<TokenId> eos_token_ids;
    int64_t min_tokens = 0;
    bool ignore_eos = false;
  };

  // `constraint`: shared with the other sequences that it constrains.
  Matcher(std::shared_ptr<Constraint> constraint, EndRules rules);

  // Reads `token`. Errors: kInvalidArgument when the constraint does not allow it, or is too
  // ambiguous to follow there, which the mask does not always show; the position is then unchanged.
  // REQUIRES: nothing is deferred.
  absl::Status Advance(TokenId token);
  // The tokens that may come next: [mask_words], bit i % 32 of word i / 32 stands for token i.
  // Valid until the next Advance. Errors: kInvalidArgument when the constraint is too ambiguous, or
  // when no token of the vocabulary can continue or end the answer.
  absl::StatusOr<absl::Span<const uint32_t>> Allowed();

  // ---- in pieces
  // Appends tokens that CatchUp will read.
  void Defer(absl::Span<const TokenId> tokens);
  // Reads deferred tokens until that has taken `work_max` (Constraint::Advance); the last one may
  // exceed it by kMaskWorkMax. Adds to `work` what it took. Returns whether all are read. Errors:
  // as Advance.
  absl::StatusOr<bool> CatchUp(uint64_t work_max, uint64_t& work);
  // Whether each deferred token was read, and fits.
  bool caught_up() const { return deferred_.empty(); }
  // Takes the mask of this position if it is known, or computes it if `compute`. Adds to `work`
  // what that took. Returns ready(). REQUIRES: nothing is deferred. Errors: as Allowed.
  absl::StatusOr<bool> PrepareMask(bool compute, uint64_t& work);
  // Whether Allowed takes no work.
  bool ready() const { return mask_known_; }

  // These three: of what was read.
  // Whether nothing can follow, so that the answer is complete.
  bool complete();
  // Whether the answer satisfies the constraint as it is.
  bool may_end();
  // Whether an end-of-sequence token was read.
  bool ended() const { return ended_; }

 private:
  bool IsEnd(TokenId token) const;
  absl::Status Read(TokenId token, uint64_t& work);
  // Takes the constraint's mask, with the end tokens that are allowed.
  absl::Status TakeMask(std::shared_ptr<const TokenMask> mask);
  // Whether the mask of this position is known and has the token.
  bool Allows(TokenId token) const;

  // Shared with the other sequences of the request, and with the cache.
  std::shared_ptr<Constraint> constraint_;
  EndRules rules_;
  Constraint::Place place_;
  int64_t tokens_ = 0;
  // Bound: the tokens of one sequence. Those from next_deferred_ on are to be read.
  std::vector<TokenId> deferred_;
  size_t next_deferred_ = 0;
  bool ended_ = false;
  bool mask_known_ = false;
  // Shared with the constraint; a copy when end tokens were added.
  std::shared_ptr<const TokenMask> mask_;
};

}  // namespace tandem::guided
