#include "sim/trace/service_mix.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/runtime/random.h"

namespace tandem::sim {

using TierOrStatus = absl::StatusOr<std::shared_ptr<const router::ServiceTier>>;

absl::StatusOr<ServiceMix> ServiceMix::Parse(absl::Span<const std::string> shares,
                                             const router::ServiceTiers& tiers) {
  return Parse(shares, [&](const std::string& name) -> TierOrStatus {
    RETURN_IF_ERROR(tiers.Check(name));
    return tiers.Choose(name, {});
  });
}

absl::StatusOr<ServiceMix> ServiceMix::ParseNames(absl::Span<const std::string> shares,
                                                  uint64_t seed) {
  const auto named = [](const std::string& name) -> TierOrStatus {
    RETURN_IF_ERROR(router::ServiceTiers::CheckName(name));
    auto tier = std::make_shared<router::ServiceTier>();
    tier->name = name;
    return tier;
  };
  ASSIGN_OR_RETURN(ServiceMix mix, Parse(shares, named));
  constexpr uint64_t kPlaces = uint64_t{1} << 32;
  mix.begin_ =
      static_cast<double>(NewSeededRandom(seed)->Below(kPlaces)) / static_cast<double>(kPlaces);
  return mix;
}

absl::StatusOr<ServiceMix> ServiceMix::Parse(absl::Span<const std::string> shares,
                                             const FindTier& find) {
  ServiceMix mix;
  double sum = 0;
  for (const std::string& text : shares) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
    const auto fault = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("service-mix: \"", text, "\": ", what));
    };
    TierOrStatus found = find(parts.first);
    if (!found.ok()) return fault(found.status().message());
    double share = 0;
    if (!absl::SimpleAtod(parts.second, &share) || !std::isfinite(share) || share <= 0)
      return fault("expected NAME:SHARE with a share above 0");
    for (const auto& [tier, until] : mix.tiers_)
      if (tier->name == parts.first) return fault("an earlier share is of this tier");
    if (mix.tiers_.size() > router::kServiceTiersMax)
      return fault(absl::StrCat("expected at most ", router::kServiceTiersMax + 1, " tiers"));
    mix.tiers_.emplace_back(*std::move(found), sum += share);
  }
  for (auto& [tier, until] : mix.tiers_) until /= sum;
  return mix;
}

std::shared_ptr<const router::ServiceTier> ServiceMix::TierOf(int64_t number) const {
  if (tiers_.empty()) return nullptr;
  // The multiples of the golden section are spread evenly, wherever one looks.
  const double at = std::fmod(begin_ + static_cast<double>(number) * 0.6180339887498949, 1.0);
  for (const auto& [tier, until] : tiers_)
    if (at < until) return tier;
  return tiers_.back().first;
}

std::vector<std::shared_ptr<const router::ServiceTier>> ServiceMix::All() const {
  std::vector<std::shared_ptr<const router::ServiceTier>> all;
  for (const auto& [tier, until] : tiers_) all.push_back(tier);
  return all;
}

}  // namespace tandem::sim
