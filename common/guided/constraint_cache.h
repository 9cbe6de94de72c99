// Compiled constraints by what was asked for: each is compiled once and shared by all sequences
// that have it; the least recently used ones go when there are too many or they hold too much.
// Thread safety: any thread; two threads may compile the same constraint at once, one result is
// kept.
#pragma once

#include <list>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/guided/constraint.h"
#include "common/guided/vocabulary.h"
#include "common/request/guided_params.h"

namespace tandem::guided {

class ConstraintCache {
 public:
  static constexpr size_t kConstraintsMax = 64;
  static constexpr size_t kBytesMax = size_t{512} << 20;

  explicit ConstraintCache(std::shared_ptr<const Vocabulary> vocabulary)
      : vocabulary_(std::move(vocabulary)) {}

  // REQUIRES: params.any(). Errors: as Compile.
  absl::StatusOr<std::shared_ptr<Constraint>> Get(const request::GuidedParams& params);

 private:
  // Shared with the sequences that follow it.
  using Kept = std::list<std::pair<request::GuidedParams, std::shared_ptr<Constraint>>>;

  void DropOld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const Vocabulary> vocabulary_;
  absl::Mutex mutex_;
  Kept kept_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  absl::flat_hash_map<request::GuidedParams, Kept::iterator> index_ ABSL_GUARDED_BY(mutex_);
};

// For routers, which have nothing to choose: whether a constraint compiles. Verdicts are kept.
class ConstraintChecker {
 public:
  static constexpr size_t kVerdictsMax = 256;

  // OK, or as Compile.
  absl::Status Check(const request::GuidedParams& params);

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<request::GuidedParams, absl::Status> verdicts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::guided
