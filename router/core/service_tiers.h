// The service tiers that an operator has named (--service-tiers), beside the tier "default". One
// line each:
//   NAME [SETTING=VALUE]...
//   ttft=DURATION       goal for the time to first token; 0 = none
//   gap=DURATION        goal for the time between two tokens; 0 = none
//   late=serve|refuse   what becomes of a request that would miss `ttft`
//   priority=N          added to the priorities of its requests; a lower one is more urgent
// Goals that a line leaves out are those of the tier "default": --ttft-slo, --gap-slo, --late.
//
// Thread safety: immutable.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/core/service_tier.h"

namespace tandem::router {

// Without the default.
inline constexpr size_t kServiceTiersMax = 16;
inline constexpr size_t kServiceTierNameBytesMax = 32;
// Either way, of a tier's `priority`.
inline constexpr int32_t kTierPriorityMax = 1000;

class ServiceTiers {
 public:
  // Only the tier "default", without goals.
  ServiceTiers() : tiers_({std::make_shared<const ServiceTier>()}) {}

  // kInvalidArgument naming the line, the setting at fault, and what was expected.
  static absl::StatusOr<ServiceTiers> Parse(absl::Span<const std::string> lines,
                                            const ServiceTier& default_tier);

  // The tier of a request for which its client names the tier `asked`. `allowed`: those that the
  // client may use, the one that it gets by default first; empty = all. "" and "auto" leave it to
  // the router, and so do
  // the names of OpenAI's tiers that this router has not.
  // kInvalidArgument for any other name, kPermissionDenied for a tier that is not `allowed`.
  absl::StatusOr<std::shared_ptr<const ServiceTier>> Choose(
      absl::string_view asked, absl::Span<const std::string> allowed) const;

  // kInvalidArgument for what cannot be a tier's name.
  static absl::Status CheckName(absl::string_view name);
  // kInvalidArgument for a name that no tier has.
  absl::Status Check(absl::string_view name) const;

  // The default first, then in the order of the lines.
  const std::vector<std::shared_ptr<const ServiceTier>>& all() const { return tiers_; }

 private:
  std::shared_ptr<const ServiceTier> Find(absl::string_view name) const;
  // kInvalidArgument: no tier has this name.
  absl::Status Unknown(absl::string_view asked) const;
  // "default, flex, priority".
  std::string Names() const;

  // Bound: kServiceTiersMax (16) and the default.
  std::vector<std::shared_ptr<const ServiceTier>> tiers_;
};

}  // namespace tandem::router
