#include "router/core/service_tiers.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kAuto = "auto";
// Of OpenAI's API. Its clients may name them anywhere.
constexpr std::array<absl::string_view, 5> kForeignTiers = {"flex", "scale", "priority", "fast",
                                                            "ultrafast"};
constexpr absl::string_view kSettings =
    "ttft=DURATION, gap=DURATION, late=serve|refuse, priority=N";

bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= kServiceTierNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_islower(static_cast<unsigned char>(c)) ||
                  absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '-' || c == '_';
         });
}

absl::Status ReadGoal(absl::string_view text, absl::Duration& to) {
  if (absl::ParseDuration(text, &to) && to >= absl::ZeroDuration() &&
      to != absl::InfiniteDuration())
    return absl::OkStatus();
  return absl::InvalidArgumentError("expected a duration of at least 0, such as 500ms or 10s");
}

absl::Status ReadLate(absl::string_view text, LatePolicy& to) {
  for (const auto& [name, policy] : kLatePolicies) {
    if (text != name) continue;
    to = policy;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("expected late=serve or late=refuse");
}

absl::Status ReadSetting(absl::string_view name, absl::string_view value, ServiceTier& tier) {
  if (name == "ttft") return ReadGoal(value, tier.ttft_slo);
  if (name == "gap") return ReadGoal(value, tier.gap_slo);
  if (name == "late") return ReadLate(value, tier.late);
  if (name == "priority") {
    if (absl::SimpleAtoi(value, &tier.priority) && tier.priority >= -kTierPriorityMax &&
        tier.priority <= kTierPriorityMax)
      return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("expected a whole number from -", kTierPriorityMax, " to ", kTierPriorityMax));
  }
  return absl::InvalidArgumentError(absl::StrCat("expected ", kSettings));
}

absl::StatusOr<ServiceTier> ReadLine(absl::string_view line, const ServiceTier& default_tier) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.empty() || !IsName(words[0]) || words[0] == kDefaultTier || words[0] == kAuto)
    return absl::InvalidArgumentError(
        absl::StrCat("expected NAME [", kSettings, "], the name of 1 to ", kServiceTierNameBytesMax,
                     " lower-case letters, digits, \"-\" and \"_\", and not \"", kAuto, "\" or \"",
                     kDefaultTier, "\", whose goals are --ttft-slo, --gap-slo and --late"));
  ServiceTier tier = default_tier;
  tier.name = std::string(words[0]);
  tier.priority = 0;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> setting =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    const absl::Status status = ReadSetting(setting.first, setting.second, tier);
    if (!status.ok())
      return absl::InvalidArgumentError(absl::StrCat("\"", words[i], "\", ", status.message()));
  }
  return tier;
}

}  // namespace

absl::StatusOr<ServiceTiers> ServiceTiers::Parse(absl::Span<const std::string> lines,
                                                 const ServiceTier& default_tier) {
  ServiceTiers tiers;
  tiers.tiers_ = {std::make_shared<const ServiceTier>(default_tier)};
  for (const std::string& line : lines) {
    const auto fault = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("service-tiers: \"", line, "\": ", what));
    };
    absl::StatusOr<ServiceTier> tier = ReadLine(line, default_tier);
    if (!tier.ok()) return fault(tier.status().message());
    if (tiers.Find(tier->name) != nullptr) return fault("an earlier tier has this name");
    if (tiers.tiers_.size() > kServiceTiersMax)
      return fault(absl::StrCat("expected at most ", kServiceTiersMax, " tiers"));
    tiers.tiers_.push_back(std::make_shared<const ServiceTier>(*std::move(tier)));
  }
  return tiers;
}

absl::StatusOr<std::shared_ptr<const ServiceTier>> ServiceTiers::Choose(
    absl::string_view asked, absl::Span<const std::string> allowed) const {
  std::shared_ptr<const ServiceTier> tier = Find(asked);
  if (tier == nullptr) {
    const bool foreign =
        std::find(kForeignTiers.begin(), kForeignTiers.end(), asked) != kForeignTiers.end();
    if (!asked.empty() && asked != kAuto && !foreign) return Unknown(asked);
    return Find(allowed.empty() ? kDefaultTier : absl::string_view(allowed.front()));
  }
  if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), asked) == allowed.end())
    return absl::PermissionDeniedError(
        absl::StrCat("service_tier: \"", asked,
                     "\", expected one that this key may use: ", absl::StrJoin(allowed, " or ")));
  return tier;
}

absl::Status ServiceTiers::CheckName(absl::string_view name) {
  if (IsName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected a name of 1 to ",
                                                 kServiceTierNameBytesMax,
                                                 " lower-case letters, digits, \"-\" and \"_\""));
}

absl::Status ServiceTiers::Check(absl::string_view name) const {
  if (Find(name) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" is no service tier, expected ", Names()));
}

std::shared_ptr<const ServiceTier> ServiceTiers::Find(absl::string_view name) const {
  for (const auto& tier : tiers_)
    if (tier->name == name) return tier;
  return nullptr;
}

absl::Status ServiceTiers::Unknown(absl::string_view asked) const {
  return absl::InvalidArgumentError(
      absl::StrCat("service_tier: ", ShownInQuotes(asked, kServiceTierNameBytesMax), ", expected ",
                   kAuto, " or one of ", Names()));
}

std::string ServiceTiers::Names() const {
  std::vector<std::string> names;
  for (const auto& tier : tiers_) names.push_back(tier->name);
  return absl::StrJoin(names, ", ");
}

}  // namespace tandem::router
