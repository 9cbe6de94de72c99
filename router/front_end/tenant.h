// A tenant owns API keys and everything that clients ask for with them. A tenant has limits; its
// requests have names of its own; and its cached prompts are found by its own requests alone,
// unless it shares them with a group.
//
// Thread safety: any thread.
// Owner: ApiKeys, and every call of the tenant that is being answered.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::router {

struct TenantLimits {
  // Each of these is a token bucket that holds one minute's amount; 0 = no limit.
  int64_t requests_per_minute = 0;
  int64_t tokens_per_minute = 0;
  // Sequences that are answered at a time, those of best_of and beam searches included; 0 = no
  // limit.
  int64_t sequences_max = 0;
  // Of each pool of KV blocks, and of the decode nodes' together: see keys_file; 0 = no limit.
  double kv_share = 0;
  // Priorities that its requests may have; a lower one is more urgent.
  int32_t priority_min = 0;
  int32_t priority_max = std::numeric_limits<int32_t>::max();
  // Service tiers that its requests may name, the one that they get by default first; empty: all,
  // and "default" first. Bound: kServiceTiersMax (16) and the default.
  std::vector<std::string> service_tiers;
  // Tenants of one group share cached prompts; empty: no other tenant finds them.
  std::string cache_group;
  // Tenants that wait at the same time get the nodes' time in proportion to their weights.
  int64_t weight = 1;
  bool may_infer = true;  // may ask for answers and tokens
  bool is_admin = false;  // may see and end the requests of every tenant

  friend bool operator==(const TenantLimits&, const TenantLimits&) = default;
};

// What a tenant has used of this router since it started, and what is left of its quotas as far as
// this router knows. Routers tell each other (quota_exchange.h).
struct TenantUse {
  double requests = 0;  // counted
  double tokens = 0;    // charged
  int64_t sequences = 0;
  double demand = 0;  // requests that were asked for recently, refused ones included
  double requests_left = 0, tokens_left = 0;
  // This router's parts: what it may give out before routers divide again.
  double requests_part = 0, tokens_part = 0, sequences_part = 0;
};

class TenantCall;

enum class Quota { kRequests, kTokens, kSequences };

class Tenant {
 public:
  // After so long, a request counts for a third of a new one in the demand.
  static constexpr absl::Duration kDemandMemory = absl::Seconds(5);

  explicit Tenant(std::string name) : name_(std::move(name)) {}
  Tenant(const Tenant&) = delete;
  Tenant& operator=(const Tenant&) = delete;

  const std::string& name() const { return name_; }
  TenantLimits limits() const;
  // What was used so far stays counted.
  void SetLimits(const TenantLimits& limits);

  // Counts one request. kResourceExhausted, with the seconds until a retry makes sense in the
  // payload rpc::kRetryAfterPayload, when requests or tokens are used up: the request then does not
  // count.
  absl::Status CountRequest(absl::Time now);
  // Charges tokens that were computed; a negative number gives tokens back. The bucket may fall
  // below zero: requests are then refused until it has refilled, so the rate holds in the long run.
  void Charge(int64_t tokens, absl::Time now);
  // Counts sequences that begin. kResourceExhausted, with the retry payload, beyond sequences_max.
  absl::Status Begin(int64_t sequences);
  void End(int64_t sequences);
  int64_t sequences() const;

  // ---- with other routers; without them none of this is called
  TenantUse Use(absl::Time now) const;
  // Other routers counted requests and charged tokens; negative numbers give back.
  void OnUsedElsewhere(double requests, double tokens, absl::Time now);
  // Another router knows that no more than this is left.
  void LowerLeft(const TenantUse& known, absl::Time now);
  // Until the next call this router gives out no more than its part of what is left. `part_of`
  // returns it: of a quota, from what is left in all and from the part so far, which may be
  // infinite. `sequences_elsewhere`: that other routers run.
  using PartOf = absl::FunctionRef<double(Quota quota, double left, double part)>;
  void Divide(int64_t sequences_elsewhere, PartOf part_of, absl::Time now);
  // No other router is there any more: all that is left is this one's.
  void TakeAll();

  // kPermissionDenied, naming the allowed range.
  absl::Status CheckPriority(int32_t priority) const;
  // kPermissionDenied for a tenant without the scope admin.
  absl::Status CheckIsAdmin() const;
  // kPermissionDenied for a tenant that may not ask for answers.
  absl::Status CheckMayInfer() const;

  // The name that the cluster knows the tenant's request by, "TENANT/ID". No other tenant can form
  // it, so no client can abort, resume or look up another tenant's request.
  std::string ScopedId(absl::string_view request_id) const;
  // The name for a look-up or an abort. As ScopedId, but an admin may write "TENANT/ID" for any
  // tenant's request.
  std::string SoughtId(absl::string_view request_id) const;
  // The salt of the request's cached blocks: the tenant's or its group's, and the client's own.
  std::string CacheSalt(absl::string_view client_salt) const;

 private:
  friend class TenantCall;
  // The running call that began with this id; null if there is none.
  std::shared_ptr<const TenantCall> FindCall(absl::string_view request_id) const;
  // FindCall finds it from now on, in place of one that runs only if it `replaces` that.
  void Keep(const std::shared_ptr<const TenantCall>& call, bool replaces);
  // A call has lost its last owner. `request_id`: of one that was kept; else empty.
  void EndCall(const std::string& request_id, int64_t sequences);

  // A token bucket that refills to `per_minute` in one minute. `per_minute` 0: no limit.
  struct Bucket {
    double per_minute = 0;
    double left = 0;
    absl::Time at = absl::InfinitePast();
    double used = 0;  // of this router, so far
    // What this router may give out of `left`, if other routers have their parts.
    double part = std::numeric_limits<double>::infinity();

    void Refill(absl::Time now);
    void Use(double amount);
    void SetLimit(int64_t per_minute);
    // Seconds until this router may give out `wanted`; 0 if it may now.
    int64_t SecondsUntil(double wanted) const;
  };
  double DemandAt(absl::Time now) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status Refuse(const char* what, const Bucket& bucket, int64_t seconds) const;

  const std::string name_;
  mutable absl::Mutex mutex_;
  TenantLimits limits_ ABSL_GUARDED_BY(mutex_);
  Bucket requests_ ABSL_GUARDED_BY(mutex_);
  Bucket tokens_ ABSL_GUARDED_BY(mutex_);
  int64_t sequences_ ABSL_GUARDED_BY(mutex_) = 0;
  // Further ones that may begin, if other routers have their parts.
  double sequences_part_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<double>::infinity();
  // By request id. Bound: the tenant's calls that run.
  absl::flat_hash_map<std::string, std::weak_ptr<const TenantCall>> calls_ ABSL_GUARDED_BY(mutex_);
  double demand_ ABSL_GUARDED_BY(mutex_) = 0;  // at demand_at_
  absl::Time demand_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

// One call of a tenant while it is answered: holds its place among the tenant's sequences, and
// gives it back when the last owner lets go. Thread safety: any thread. Owner: shared by the call's
// answer sessions.
class TenantCall {
 public:
  // A call that `resumes` an answer takes over the place of the call that still runs with this
  // `request_id`, since the core ends that one; if it has more sequences it takes places of its
  // own. `request_id`: empty of a call that none can resume. Errors as Tenant::Begin.
  static absl::StatusOr<std::shared_ptr<const TenantCall>> Begin(std::shared_ptr<Tenant> tenant,
                                                                 int64_t sequences,
                                                                 absl::string_view request_id = "",
                                                                 bool resumes = false);
  ~TenantCall() { tenant_->EndCall(request_id_, sequences_); }
  TenantCall(const TenantCall&) = delete;
  TenantCall& operator=(const TenantCall&) = delete;

  Tenant& tenant() const { return *tenant_; }

 private:
  friend class Tenant;
  TenantCall(std::shared_ptr<Tenant> tenant, int64_t sequences, absl::string_view request_id)
      : tenant_(std::move(tenant)), sequences_(sequences), request_id_(request_id) {}

  const std::shared_ptr<Tenant> tenant_;
  const int64_t sequences_;
  const std::string request_id_;
};

}  // namespace tandem::router
