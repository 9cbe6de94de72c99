#include "sim/trace/service_mix.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace tandem::sim {

absl::StatusOr<ServiceMix> ServiceMix::Parse(absl::Span<const std::string> shares,
                                             const router::ServiceTiers& tiers) {
  ServiceMix mix;
  double sum = 0;
  for (const std::string& text : shares) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
    const auto fault = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("service-mix: \"", text, "\": ", what));
    };
    if (const absl::Status known = tiers.Check(parts.first); !known.ok())
      return fault(known.message());
    double share = 0;
    if (!absl::SimpleAtod(parts.second, &share) || !std::isfinite(share) || share <= 0)
      return fault("expected NAME:SHARE with a share above 0");
    for (const auto& [tier, until] : mix.tiers_)
      if (tier->name == parts.first) return fault("an earlier share is of this tier");
    ASSIGN_OR_RETURN(auto tier, tiers.Choose(parts.first, {}));
    mix.tiers_.emplace_back(std::move(tier), sum += share);
  }
  for (auto& [tier, until] : mix.tiers_) until /= sum;
  return mix;
}

std::shared_ptr<const router::ServiceTier> ServiceMix::TierOf(int64_t number) const {
  if (tiers_.empty()) return nullptr;
  // The multiples of the golden section are spread evenly, wherever one looks.
  const double at = std::fmod(static_cast<double>(number) * 0.6180339887498949, 1.0);
  for (const auto& [tier, until] : tiers_)
    if (at < until) return tier;
  return tiers_.back().first;
}

}  // namespace tandem::sim
