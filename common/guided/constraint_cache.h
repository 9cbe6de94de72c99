// A cache of compiled constraints, keyed by the request's parameters. It compiles each constraint
// once and shares it among all sequences that use it. It evicts the least recently used constraints
// when there are too many or they use too much memory: kConstraintsMax, and kBytesMax or the one
// that is in use. Sequences that hold an evicted constraint keep it.
// Thread safety: any thread. Two threads may compile the same constraint at once; the cache keeps
// one result.
// Owner: a node's process owns a ConstraintCache, a router's model assets a ConstraintChecker.
#pragma once

#include <list>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/shared_value.h"
#include "common/guided/constraint.h"
#include "common/guided/vocabulary.h"
#include "common/request/guided_params.h"

namespace tandem::guided {

class ConstraintCache {
 public:
  static constexpr size_t kConstraintsMax = 64;
  static constexpr size_t kBytesMax = size_t{512} << 20;

  explicit ConstraintCache(std::shared_ptr<const Vocabulary> vocabulary,
                           size_t bytes_max = kBytesMax)
      : vocabulary_(std::move(vocabulary)), bytes_max_(bytes_max) {}

  // Returns the compiled constraint. REQUIRES: params.any(). Errors: those of Compile and
  // Constraint::Try.
  absl::StatusOr<std::shared_ptr<Constraint>> Get(const request::GuidedParams& params);
  // The same if the cache has it, or the error, already; compiles nothing. The others may be
  // evicted, because constraints grow while they are used.
  std::optional<absl::StatusOr<std::shared_ptr<Constraint>>> Find(
      const request::GuidedParams& params);

 private:
  // A constraint is shared with the sequences that it constrains.
  using Entries = std::list<std::pair<request::GuidedParams, std::shared_ptr<Constraint>>>;

  void EvictOld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const Vocabulary> vocabulary_;
  const size_t bytes_max_;
  absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  absl::flat_hash_map<request::GuidedParams, Entries::iterator> index_ ABSL_GUARDED_BY(mutex_);
  // Errors of Get. Bound: kConstraintsMax, then all go.
  absl::flat_hash_map<request::GuidedParams, absl::Status> errors_ ABSL_GUARDED_BY(mutex_);
};

// Tells a router, which needs no Program, whether a constraint compiles. It caches the verdicts.
class ConstraintChecker {
 public:
  static constexpr size_t kVerdictsMax = 256;

  // `vocabulary`: that of the nodes, so that they refuse what the checker refuses.
  explicit ConstraintChecker(std::shared_ptr<const Vocabulary> vocabulary)
      : vocabulary_(std::move(vocabulary)) {}

  // OK, or the error of ConstraintCache::Get.
  absl::Status Check(const request::GuidedParams& params);
  // The same if it is known already; compiles nothing.
  std::optional<absl::Status> Find(const request::GuidedParams& params);
  // `params`, or the copy of an equal one that the last call returned: the prompts of a batch then
  // hold one constraint.
  SharedValue<request::GuidedParams> Share(const SharedValue<request::GuidedParams>& params);

 private:
  const std::shared_ptr<const Vocabulary> vocabulary_;
  absl::Mutex mutex_;
  absl::flat_hash_map<request::GuidedParams, absl::Status> verdicts_ ABSL_GUARDED_BY(mutex_);
  // The last one that was shared. One is enough for a batch.
  SharedValue<request::GuidedParams> shared_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::guided
