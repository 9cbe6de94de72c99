#include "router/front_end/quota_exchange.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace tandem::router {
namespace {

// Of a quota, what is divided equally: a router that a tenant comes to has something to give out.
constexpr double kEqualPart = 0.25;
// A smaller demand counts as none.
constexpr double kNoDemand = 1e-3;
// No figure of a report is larger: whole numbers up to here are exact, and their sums fit.
constexpr double kFigureMax = 1e15;
constexpr int64_t kReportedSequencesMax = 1'000'000'000;

bool HasQuota(const TenantLimits& limits) {
  return limits.requests_per_minute > 0 || limits.tokens_per_minute > 0 || limits.sequences_max > 0;
}

v1::TenantUse ToWire(const std::string& tenant, const TenantUse& use) {
  v1::TenantUse wire;
  wire.set_tenant(tenant);
  wire.set_requests(use.requests);
  wire.set_tokens(use.tokens);
  wire.set_sequences(use.sequences);
  wire.set_demand(use.demand);
  wire.set_requests_left(use.requests_left);
  wire.set_tokens_left(use.tokens_left);
  wire.set_requests_part(use.requests_part);
  wire.set_tokens_part(use.tokens_part);
  wire.set_sequences_part(use.sequences_part);
  return wire;
}

// False for figures that no router reports.
bool FromWire(const v1::TenantUse& wire, TenantUse& use) {
  use = {.requests = wire.requests(),
         .tokens = wire.tokens(),
         .sequences = wire.sequences(),
         .demand = wire.demand(),
         .requests_left = wire.requests_left(),
         .tokens_left = wire.tokens_left(),
         .requests_part = wire.requests_part(),
         .tokens_part = wire.tokens_part(),
         .sequences_part = wire.sequences_part()};
  for (const double figure :
       {use.requests, use.tokens, use.demand, use.requests_left, use.tokens_left, use.requests_part,
        use.tokens_part, use.sequences_part}) {
    if (!(std::abs(figure) <= kFigureMax)) return false;  // nor if it is not a number
  }
  return use.demand >= 0 && use.sequences >= 0 && use.sequences <= kReportedSequencesMax;
}

// Takes off a tenant's buckets what a router gave out between its reports `before` and `use`. Null,
// as for a tenant that it names for the first time, or more than there is now, because it counts
// anew: then what it gave out is taken off, but no more than its own buckets lack.
void TakeOff(const TenantUse& use, const TenantUse* before, Tenant& tenant, absl::Time now) {
  // Tokens are given back, requests never are.
  if (before != nullptr && use.requests >= before->requests) {
    tenant.OnUsedElsewhere(use.requests - before->requests, use.tokens - before->tokens, now);
    return;
  }
  const TenantLimits limits = tenant.limits();
  const auto lacks = [](double used, int64_t per_minute, double left) {
    return std::clamp(used, 0.0, std::max(0.0, static_cast<double>(per_minute) - left));
  };
  tenant.OnUsedElsewhere(lacks(use.requests, limits.requests_per_minute, use.requests_left),
                         lacks(use.tokens, limits.tokens_per_minute, use.tokens_left), now);
}

}  // namespace

double QuotaExchange::ShareOf(double amount, const std::vector<Claim>& claims) const {
  const auto whole_amount = static_cast<int64_t>(std::max(0.0, amount));
  const auto count = static_cast<double>(claims.size());
  double demand = 0;
  for (const Claim& claim : claims) demand += claim.demand;
  struct Share {
    const Claim* claim;
    int64_t whole = 0;
    double rest = 0;
  };
  std::vector<Share> shares;
  int64_t given = 0;
  for (const Claim& claim : claims) {
    const double fraction = demand < kNoDemand
                                ? 1 / count
                                : kEqualPart / count + (1 - kEqualPart) * claim.demand / demand;
    const double exact = static_cast<double>(whole_amount) * fraction;
    shares.push_back({&claim, static_cast<int64_t>(exact), exact - std::floor(exact)});
    given += shares.back().whole;
  }
  // What is left of whole numbers goes to the largest remainders; all routers agree on the order.
  std::sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
    return std::tuple(-a.rest, -a.claim->demand, a.claim->incarnation) <
           std::tuple(-b.rest, -b.claim->demand, b.claim->incarnation);
  });
  for (Share& share : shares) {
    if (given++ < whole_amount) ++share.whole;
    if (share.claim->incarnation == incarnation_) return static_cast<double>(share.whole);
  }
  return 0;
}

double QuotaExchange::PartOf(double left, double part, double parts_elsewhere, bool may_raise,
                             const std::vector<Claim>& claims) const {
  const double target = ShareOf(left, claims);
  if (part >= target) return target;
  // A part below zero was overdrawn; that is taken off `left` already.
  part = std::max(0.0, part);
  if (!may_raise) return std::min(part, target);
  return std::min(target, part + ShareOf(left - part - parts_elsewhere, claims));
}

void QuotaExchange::HoldDemand(const Tenant& tenant, absl::Time now) {
  Held& held = held_.try_emplace(tenant.name(), Held{}).first->second;
  std::rotate(held.begin(), held.begin() + 1, held.end());
  held.back() = tenant.Use(now).demand;
}

QuotaExchange::Elsewhere QuotaExchange::ElsewhereOf(const Tenant& tenant, absl::Time now) {
  const Held& held = held_.try_emplace(tenant.name(), Held{}).first->second;
  const TenantUse here = tenant.Use(now);
  Elsewhere elsewhere;
  elsewhere.unused_here = here.requests == 0 && here.tokens == 0 && here.sequences == 0;
  elsewhere.claims = {{incarnation_, *std::min_element(held.begin(), held.end())}};
  for (const auto& [incarnation, peer] : peers_) {
    if (now - peer.heard > kSilence) continue;
    const auto found = peer.uses.find(tenant.name());
    const TenantUse use = found == peer.uses.end() ? TenantUse() : found->second;
    elsewhere.claims.push_back({incarnation, use.demand});
    elsewhere.requests_part += use.requests_part;
    elsewhere.tokens_part += use.tokens_part;
    elsewhere.sequences_part += use.sequences_part;
    elsewhere.sequences += use.sequences;
  }
  return elsewhere;
}

void QuotaExchange::Divide(Tenant& tenant, bool may_raise, absl::Time now) {
  const Elsewhere elsewhere = ElsewhereOf(tenant, now);
  if (elsewhere.claims.size() == 1) return tenant.TakeAll();
  const auto part_of = [&](Quota quota, double left, double part) {
    const double parts = quota == Quota::kRequests ? elsewhere.requests_part
                         : quota == Quota::kTokens ? elsewhere.tokens_part
                                                   : elsewhere.sequences_part;
    const bool begins = elsewhere.unused_here && std::isinf(part);
    return PartOf(left, begins ? 0 : part, parts, may_raise, elsewhere.claims);
  };
  tenant.Divide(elsewhere.sequences, part_of, now);
}

bool QuotaExchange::MayRaise(absl::Time now) {
  for (const auto& [incarnation, peer] : peers_)
    if (now - peer.heard <= kSilence && !peer.is_news) return false;
  for (auto& [incarnation, peer] : peers_) peer.is_news = false;
  return true;
}

v1::RouterReport QuotaExchange::Report(const Tenants& tenants, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  v1::RouterReport report;
  report.set_router_incarnation(incarnation_);
  report.set_version(++version_);
  const bool may_raise = MayRaise(now);
  std::vector<std::pair<std::string, TenantUse>> uses;
  absl::flat_hash_map<std::string, Held> held;
  for (const std::shared_ptr<Tenant>& tenant : tenants) {
    if (!HasQuota(tenant->limits())) continue;
    HoldDemand(*tenant, now);
    Divide(*tenant, may_raise, now);
    held.insert(*held_.find(tenant->name()));
    uses.emplace_back(tenant->name(), tenant->Use(now));
  }
  held_ = std::move(held);  // those of tenants that are gone go
  if (uses.size() > kTenantsMax) {
    std::nth_element(
        uses.begin(), uses.begin() + kTenantsMax, uses.end(),
        [](const auto& a, const auto& b) { return a.second.demand > b.second.demand; });
    uses.resize(kTenantsMax);
  }
  for (const auto& [tenant, use] : uses) *report.add_tenants() = ToWire(tenant, use);
  return report;
}

void QuotaExchange::ForgetSilentest() {
  const auto silentest = std::min_element(
      peers_.begin(), peers_.end(),
      [](const auto& a, const auto& b) { return a.second.heard < b.second.heard; });
  peers_.erase(silentest);
}

void QuotaExchange::OnReport(const v1::RouterReport& report, const Tenants& tenants,
                             absl::Time now) {
  const uint64_t incarnation = report.router_incarnation();
  if (incarnation == incarnation_ || report.tenants_size() > static_cast<int>(kTenantsMax)) return;
  absl::flat_hash_map<std::string, Tenant*> by_name;
  for (const std::shared_ptr<Tenant>& tenant : tenants) by_name[tenant->name()] = tenant.get();
  absl::MutexLock lock(&mutex_);
  const auto known = peers_.find(incarnation);
  if (known == peers_.end() && peers_.size() == kPeersMax) ForgetSilentest();
  const bool is_new = known == peers_.end();
  Peer& peer = peers_[incarnation];
  if (report.version() <= peer.version) return;
  const bool knows_more = is_new ? report.version() > kReportsOfAMinute
                                 : now - peer.heard > kReportsOfAMinute * kInterval;
  const bool comes = is_new || now - peer.heard > kSilence;
  peer.version = report.version();
  peer.heard = now;
  peer.is_news = true;
  Uses uses;
  const auto unnamed_before = std::exchange(peer.unnamed, {});
  for (const v1::TenantUse& wire : report.tenants()) {
    const auto tenant = by_name.find(wire.tenant());
    if (tenant == by_name.end()) peer.unnamed.insert(wire.tenant());
    TenantUse use;
    if (tenant == by_name.end() || !FromWire(wire, use)) continue;
    if (knows_more || unnamed_before.contains(wire.tenant())) {
      // Of what it used meanwhile, its bucket shows the last minute.
      tenant->second->LowerLeft(use, now);
    } else {
      const auto last = peer.uses.find(wire.tenant());
      const TenantUse nothing;
      const TenantUse* before = last != peer.uses.end() ? &last->second
                                : is_new                ? &nothing
                                                        : nullptr;
      TakeOff(use, before, *tenant->second, now);
    }
    uses[wire.tenant()] = use;
  }
  // A tenant that the report leaves out runs nothing there; what it used stays known, also while
  // the keys file does not name it.
  size_t gone = 0;
  for (auto& [tenant, use] : peer.uses) {
    if (uses.contains(tenant)) continue;
    if (!by_name.contains(tenant) && ++gone > kGoneMax) continue;
    use.sequences = 0;
    use.demand = use.requests_part = use.tokens_part = use.sequences_part = 0;
    uses.emplace(tenant, use);
  }
  peer.uses = std::move(uses);
  // What this router could give out alone it may not until its next report.
  if (!comes) return;
  for (const std::shared_ptr<Tenant>& tenant : tenants)
    if (HasQuota(tenant->limits())) Divide(*tenant, /*may_raise=*/false, now);
}

int64_t QuotaExchange::peers(absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  return std::count_if(peers_.begin(), peers_.end(),
                       [&](const auto& entry) { return now - entry.second.heard <= kSilence; });
}

}  // namespace tandem::router
