// Makes a tenant's quota hold over all routers of a fleet
// (docs/adr/0053-routers-divide-what-is-left-of-a-quota.md): routers tell each other, about once a
// second, what their tenants have used, and each gives out its part of what is left. Nodes carry
// the reports, so a router needs no list of routers; it knows those that it hears of.
//
//   left     Each router keeps a tenant's whole bucket: it takes off what it gave out itself, and
//            what the reports of others say that they did. So over time the routers together give
//            out one quota, whichever of them the tenant uses.
//   part     Between two reports a router gives out at most its part, which its report names. It
//            raises the part by its share of what is left and in no router's part; so a burst at
//            all routers at once gets one quota, too. It raises it only once it has heard of every
//            other router again, since these may have raised theirs; it lowers it at any time, to
//            its share of what is left in all. What is in no part, or not given out, is divided
//            again.
//   share    A quarter is divided equally, the rest in the proportion in which the tenant asked the
//            routers for requests recently. A router's own demand counts only once it stood in
//            kHeld reports, so that others have made room; that it fell counts at once.
//   start    A router that hears of another one gives out parts from that moment. If it has given
//            out nothing so far it begins without one; else with its share of all that is left.
//   alone    A router that has heard of no other for kSilence gives out all that is left. Routers
//            that have no node in common cannot hear of each other: each of them gives out a whole
//            quota.
//
// Parts are whole numbers. Routers that know different demands may round one number up twice: for
// a second the quota is then exceeded by one.
//
// Thread safety: any thread. Owner: RouterServer.
// Invariants: reports of one router are taken in the order of their versions, each once.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/front_end/tenant.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

class QuotaExchange {
 public:
  // How often a router reports.
  static constexpr absl::Duration kInterval = absl::Seconds(1);
  // A router that is not heard of for this long counts as gone.
  static constexpr absl::Duration kSilence = absl::Seconds(5);
  static constexpr size_t kHeld = 3;
  // Tenants of one report: those that used most. Their names are short, so a report stays below
  // 256 KiB.
  static constexpr size_t kTenantsMax = 1024;
  // A bucket holds a minute. Of a router that has reported as often when it is first heard of, or
  // that was silent for as long, only what its bucket has left counts, and not all that it used.
  static constexpr uint64_t kReportsOfAMinute = 60;
  // Tenants that the keys file names no more, of which it is remembered what a router gave out.
  static constexpr size_t kGoneMax = 1024;
  // Routers that are remembered; beyond it the one that is silent for longest is forgotten.
  static constexpr size_t kPeersMax = 64;

  using Tenants = std::vector<std::shared_ptr<Tenant>>;

  // `incarnation`: names this start of this router; others must not share it.
  explicit QuotaExchange(uint64_t incarnation) : incarnation_(incarnation) {}

  // Divides what is left of the quotas of `tenants`, and returns the report for the other routers.
  // Call it every kInterval.
  v1::RouterReport Report(const Tenants& tenants, absl::Time now);
  // A node brought another router's report, perhaps one that is known or this router's own.
  void OnReport(const v1::RouterReport& report, const Tenants& tenants, absl::Time now);
  // Other routers that were heard of within kSilence.
  int64_t peers(absl::Time now) const;

 private:
  using Uses = absl::flat_hash_map<std::string, TenantUse>;
  struct Peer {
    uint64_t version = 0;
    absl::Time heard;
    bool is_news = true;  // its last report came since this router last raised its parts
    // Bound: the lines of the keys file, and kGoneMax (1,024).
    Uses uses;
    // Tenants of its last report that the keys file here did not name. Bound: kTenantsMax.
    absl::flat_hash_set<std::string> unnamed;
  };
  // What a router may claim of a tenant's quota.
  struct Claim {
    uint64_t incarnation = 0;
    double demand = 0;
  };
  // The own demand of the last reports.
  using Held = std::array<double, kHeld>;

  // What other routers that are there hold of one tenant's quotas.
  struct Elsewhere {
    // Bound: kPeersMax (64) and this router's.
    std::vector<Claim> claims;
    double requests_part = 0, tokens_part = 0, sequences_part = 0;
    int64_t sequences = 0;
    bool unused_here = false;  // this router has given out nothing of the tenant's
  };

  // This router's share of `amount`, in whole numbers: the shares of all routers add up to it, if
  // all know the same claims.
  double ShareOf(double amount, const std::vector<Claim>& claims) const;
  // The new part of what is `left` in all, after `part`.
  double PartOf(double left, double part, double parts_elsewhere, bool may_raise,
                const std::vector<Claim>& claims) const;
  // Its demand stands in one more report of this router's.
  void HoldDemand(const Tenant& tenant, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Elsewhere ElsewhereOf(const Tenant& tenant, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Divide(Tenant& tenant, bool may_raise, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether every router that is there has reported since this one raised its parts; if so, they
  // must do so again.
  bool MayRaise(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetSilentest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t incarnation_;
  mutable absl::Mutex mutex_;
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
  // By incarnation. Bound: kPeersMax (64).
  absl::btree_map<uint64_t, Peer> peers_ ABSL_GUARDED_BY(mutex_);
  // By tenant. Bound: the lines of the keys file.
  absl::flat_hash_map<std::string, Held> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::router
