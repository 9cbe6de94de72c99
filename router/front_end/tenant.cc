#include "router/front_end/tenant.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/rpc/retry_after.h"

namespace tandem::router {
namespace {

// A place among the tenant's sequences becomes free when an answer ends, which cannot be predicted.
constexpr int64_t kSequencesRetryS = 1;
// Routers divide what is left of a quota about once a second.
constexpr int64_t kPartRetryS = 1;

}  // namespace

void Tenant::Bucket::Refill(absl::Time now) {
  const double minutes =
      at == absl::InfinitePast() ? 1.0 : absl::FDivDuration(now - at, absl::Minutes(1));
  left = std::min(per_minute, left + std::max(0.0, minutes) * per_minute);
  at = now;
}

void Tenant::Bucket::Use(double amount) {
  left = std::min(per_minute, left - amount);
  used += amount;
  part -= amount;
}

void Tenant::Bucket::SetLimit(int64_t limit) {
  if (per_minute == static_cast<double>(limit)) return;
  // A limit that begins or changes begins with a full bucket.
  *this = {.per_minute = static_cast<double>(limit), .used = used};
}

int64_t Tenant::Bucket::SecondsUntil(double wanted) const {
  if (per_minute == 0) return 0;
  if (left < wanted) return static_cast<int64_t>(std::ceil((wanted - left) / per_minute * 60));
  return part < wanted ? kPartRetryS : 0;
}

TenantLimits Tenant::limits() const {
  absl::MutexLock lock(&mutex_);
  return limits_;
}

void Tenant::SetLimits(const TenantLimits& limits) {
  absl::MutexLock lock(&mutex_);
  requests_.SetLimit(limits.requests_per_minute);
  tokens_.SetLimit(limits.tokens_per_minute);
  limits_ = limits;
}

absl::Status Tenant::Refuse(const char* what, const Bucket& bucket, int64_t seconds) const {
  return rpc::WithRetryAfter(
      absl::ResourceExhaustedError(absl::StrCat("quota: ", name_, " has used its ",
                                                bucket.per_minute, " ", what, " a minute")),
      seconds);
}

double Tenant::DemandAt(absl::Time now) const {
  return demand_ * std::exp(std::min(0.0, absl::FDivDuration(demand_at_ - now, kDemandMemory)));
}

absl::Status Tenant::CountRequest(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  demand_ = DemandAt(now) + 1;
  demand_at_ = now;
  requests_.Refill(now);
  tokens_.Refill(now);
  if (const int64_t wait = requests_.SecondsUntil(1); wait > 0)
    return Refuse("requests", requests_, wait);
  if (const int64_t wait = tokens_.SecondsUntil(1); wait > 0)
    return Refuse("tokens", tokens_, wait);
  requests_.Use(1);
  return absl::OkStatus();
}

void Tenant::Charge(int64_t tokens, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  tokens_.Refill(now);
  tokens_.Use(static_cast<double>(tokens));
}

absl::Status Tenant::Begin(int64_t sequences) {
  absl::MutexLock lock(&mutex_);
  if (limits_.sequences_max > 0 && sequences_ + sequences > limits_.sequences_max) {
    return rpc::WithRetryAfter(
        absl::ResourceExhaustedError(
            absl::StrCat("quota: ", name_, " has ", sequences_, " sequences running, and ",
                         sequences, " more would pass its ", limits_.sequences_max, " at a time")),
        kSequencesRetryS);
  }
  if (limits_.sequences_max > 0 && sequences_part_ < static_cast<double>(sequences)) {
    return rpc::WithRetryAfter(
        absl::ResourceExhaustedError(absl::StrCat(
            "quota: ", name_, " has ", sequences_, " sequences running on this router, and ",
            sequences, " more would pass this router's part of its ", limits_.sequences_max,
            " at a time")),
        kSequencesRetryS);
  }
  sequences_ += sequences;
  sequences_part_ -= static_cast<double>(sequences);
  return absl::OkStatus();
}

void Tenant::End(int64_t sequences) {
  absl::MutexLock lock(&mutex_);
  sequences_ -= sequences;
  sequences_part_ += static_cast<double>(sequences);
  TANDEM_CHECK(sequences_ >= 0, "tenant ", name_, " ended more sequences than it began");
}

int64_t Tenant::sequences() const {
  absl::MutexLock lock(&mutex_);
  return sequences_;
}

TenantUse Tenant::Use(absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  Bucket requests = requests_, tokens = tokens_;
  requests.Refill(now);
  tokens.Refill(now);
  const int64_t sequences_left = std::max<int64_t>(0, limits_.sequences_max - sequences_);
  return {.requests = requests.used,
          .tokens = tokens.used,
          .sequences = sequences_,
          .demand = DemandAt(now),
          .requests_left = requests.left,
          .tokens_left = tokens.left,
          .requests_part = std::min(requests.part, std::max(0.0, requests.left)),
          .tokens_part = std::min(tokens.part, std::max(0.0, tokens.left)),
          .sequences_part = std::min(sequences_part_, static_cast<double>(sequences_left))};
}

void Tenant::OnUsedElsewhere(double requests, double tokens, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  for (const auto& [bucket, amount] :
       {std::pair(&requests_, requests), std::pair(&tokens_, tokens)}) {
    bucket->Refill(now);
    bucket->left = std::min(bucket->per_minute, bucket->left - amount);
  }
}

void Tenant::LowerLeft(const TenantUse& known, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  for (const auto& [bucket, left] :
       {std::pair(&requests_, known.requests_left), std::pair(&tokens_, known.tokens_left)}) {
    bucket->Refill(now);
    bucket->left = std::min(bucket->left, left);
  }
}

void Tenant::Divide(int64_t sequences_elsewhere, PartOf part_of, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  requests_.Refill(now);
  tokens_.Refill(now);
  requests_.part = part_of(Quota::kRequests, requests_.left, requests_.part);
  tokens_.part = part_of(Quota::kTokens, tokens_.left, tokens_.part);
  const int64_t left = limits_.sequences_max - sequences_ - sequences_elsewhere;
  sequences_part_ = part_of(Quota::kSequences, static_cast<double>(left), sequences_part_);
}

void Tenant::TakeAll() {
  absl::MutexLock lock(&mutex_);
  requests_.part = tokens_.part = sequences_part_ = std::numeric_limits<double>::infinity();
}

absl::Status Tenant::CheckPriority(int32_t priority) const {
  absl::MutexLock lock(&mutex_);
  if (priority >= limits_.priority_min && priority <= limits_.priority_max) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("priority: ", priority, ", expected ",
                                                  limits_.priority_min, " to ",
                                                  limits_.priority_max, " from ", name_));
}

absl::Status Tenant::CheckIsAdmin() const {
  absl::MutexLock lock(&mutex_);
  if (limits_.is_admin) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("authorization: ", name_, " lacks the scope admin"));
}

absl::Status Tenant::CheckMayInfer() const {
  absl::MutexLock lock(&mutex_);
  if (limits_.may_infer) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("authorization: ", name_, " lacks the scope infer"));
}

std::string Tenant::ScopedId(absl::string_view request_id) const {
  return absl::StrCat(name_, "/", request_id);
}

std::string Tenant::SoughtId(absl::string_view request_id) const {
  const bool names_tenant = request_id.find('/') != absl::string_view::npos;
  if (names_tenant && limits().is_admin) return std::string(request_id);
  return ScopedId(request_id);
}

std::string Tenant::CacheSalt(absl::string_view client_salt) const {
  absl::MutexLock lock(&mutex_);
  // Neither names nor groups contain spaces, so no two pairs give the same text.
  const bool own = limits_.cache_group.empty();
  return absl::StrCat(own ? "tenant " : "group ", own ? name_ : limits_.cache_group, " ",
                      client_salt);
}

// ---- calls

std::shared_ptr<const TenantCall> Tenant::FindCall(absl::string_view request_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = calls_.find(request_id);
  return found == calls_.end() ? nullptr : found->second.lock();
}

void Tenant::Keep(const std::shared_ptr<const TenantCall>& call, bool replaces) {
  absl::MutexLock lock(&mutex_);
  std::weak_ptr<const TenantCall>& kept = calls_[call->request_id_];
  if (replaces || kept.expired()) kept = call;
}

void Tenant::EndCall(const std::string& request_id, int64_t sequences) {
  End(sequences);
  if (request_id.empty()) return;
  absl::MutexLock lock(&mutex_);
  // Another call may have the id now.
  const auto found = calls_.find(request_id);
  if (found != calls_.end() && found->second.expired()) calls_.erase(found);
}

absl::StatusOr<std::shared_ptr<const TenantCall>> TenantCall::Begin(std::shared_ptr<Tenant> tenant,
                                                                    int64_t sequences,
                                                                    absl::string_view request_id,
                                                                    bool resumes) {
  if (resumes) {
    std::shared_ptr<const TenantCall> running = tenant->FindCall(request_id);
    if (running != nullptr && running->sequences_ >= sequences) return running;
  }
  RETURN_IF_ERROR(tenant->Begin(sequences));
  const std::shared_ptr<const TenantCall> call(new TenantCall(tenant, sequences, request_id));
  if (!request_id.empty()) tenant->Keep(call, resumes);
  return call;
}

}  // namespace tandem::router
