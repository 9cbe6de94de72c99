#include "common/guided/constraint_cache.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/guided/compile.h"

namespace tandem::guided {

namespace {

absl::StatusOr<std::shared_ptr<Constraint>> CompileAndTry(
    const request::GuidedParams& params, const std::shared_ptr<const Vocabulary>& vocabulary) {
  ASSIGN_OR_RETURN(Program program, Compile(params, vocabulary->token_bytes_max()));
  auto constraint = std::make_shared<Constraint>(std::move(program), vocabulary);
  RETURN_IF_ERROR(constraint->Try());
  return constraint;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Constraint>> ConstraintCache::Get(
    const request::GuidedParams& params) {
  if (auto known = Find(params); known.has_value()) return *std::move(known);
  absl::StatusOr<std::shared_ptr<Constraint>> constraint = CompileAndTry(params, vocabulary_);
  if (!constraint.ok()) {
    absl::MutexLock lock(&mutex_);
    if (errors_.size() >= kConstraintsMax) errors_.clear();
    errors_.emplace(params, constraint.status());
    return constraint.status();
  }
  absl::MutexLock lock(&mutex_);
  if (const auto it = index_.find(params); it != index_.end()) return it->second->second;
  entries_.emplace_front(params, *constraint);
  index_.emplace(params, entries_.begin());
  EvictOld();
  return constraint;
}

std::optional<absl::StatusOr<std::shared_ptr<Constraint>>> ConstraintCache::Find(
    const request::GuidedParams& params) {
  absl::MutexLock lock(&mutex_);
  if (const auto it = index_.find(params); it != index_.end()) {
    entries_.splice(entries_.begin(), entries_, it->second);
    EvictOld();  // looks at kConstraintsMax figures; never evicts the first entry
    return entries_.front().second;
  }
  if (const auto it = errors_.find(params); it != errors_.end()) return it->second;
  return std::nullopt;
}

void ConstraintCache::EvictOld() {
  size_t bytes = 0, count = 0;
  for (auto it = entries_.begin(); it != entries_.end();) {
    bytes += it->second->bytes();
    if (++count == 1 || (count <= kConstraintsMax && bytes <= bytes_max_)) {
      ++it;
      continue;
    }
    index_.erase(it->first);
    it = entries_.erase(it);
  }
}

SharedValue<request::GuidedParams> ConstraintChecker::Share(
    const SharedValue<request::GuidedParams>& params) {
  absl::MutexLock lock(&mutex_);
  if (!(*shared_ == *params)) shared_ = params;
  return shared_;
}

std::optional<absl::Status> ConstraintChecker::Find(const request::GuidedParams& params) {
  absl::MutexLock lock(&mutex_);
  const auto it = verdicts_.find(params);
  return it == verdicts_.end() ? std::nullopt : std::optional(it->second);
}

absl::Status ConstraintChecker::Check(const request::GuidedParams& params) {
  if (std::optional<absl::Status> known = Find(params)) return *std::move(known);
  const absl::Status verdict = CompileAndTry(params, vocabulary_).status();
  absl::MutexLock lock(&mutex_);
  if (verdicts_.size() >= kVerdictsMax) verdicts_.clear();
  verdicts_.emplace(params, verdict);
  return verdict;
}

}  // namespace tandem::guided
