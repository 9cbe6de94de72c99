// Which service tier each request of a load asks for: shares, as in "half of them flex".
// Thread safety: immutable.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "router/core/service_tiers.h"

namespace tandem::sim {

class ServiceMix {
 public:
  // Every request is of the routers' default tier, and none is counted by its tier.
  ServiceMix() = default;
  // `shares`: NAME:SHARE each, in any unit. kInvalidArgument, naming the one at fault, for a tier
  // that is not of `tiers` or comes twice, and for a share that is not above 0.
  static absl::StatusOr<ServiceMix> Parse(absl::Span<const std::string> shares,
                                          const router::ServiceTiers& tiers);
  // The same for a server whose tiers are not known here: they have names and no goals. `seed`
  // decides where the sequence of tiers begins. kInvalidArgument as well for what cannot be a
  // tier's name.
  static absl::StatusOr<ServiceMix> ParseNames(absl::Span<const std::string> shares, uint64_t seed);

  bool empty() const { return tiers_.empty(); }
  // Of the request with this number, counted from 0: always the same. Null without shares.
  std::shared_ptr<const router::ServiceTier> TierOf(int64_t number) const;
  // Each once, in the order of the shares.
  std::vector<std::shared_ptr<const router::ServiceTier>> All() const;

 private:
  using FindTier =
      std::function<absl::StatusOr<std::shared_ptr<const router::ServiceTier>>(const std::string&)>;
  static absl::StatusOr<ServiceMix> Parse(absl::Span<const std::string> shares,
                                          const FindTier& find);

  // Each with the sum of the shares up to its own; the last sum is 1.
  // Bound: kServiceTiersMax (16) and the default.
  std::vector<std::pair<std::shared_ptr<const router::ServiceTier>, double>> tiers_;
  double begin_ = 0;  // in [0, 1)
};

}  // namespace tandem::sim
