#include "router/front_end/keys_file.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "router/front_end/api_keys.h"

namespace tandem::router {
namespace {

constexpr size_t kHashHexBytes = 64;
constexpr absl::string_view kSettings =
    "requests_per_minute=N, tokens_per_minute=N, sequences=N, kv_share=N%, weight=N, "
    "priority=MIN..MAX, service_tiers=NAME,NAME, cache=GROUP or scopes=infer,admin";

constexpr int64_t kWeightMax = 1000;

absl::Status ReadAmount(absl::string_view text, int64_t& to) {
  if (absl::SimpleAtoi(text, &to) && to >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError("expected a number of at least 1");
}

// "25%".
absl::Status ReadShare(absl::string_view text, double& to) {
  double percent = 0;
  if (absl::ConsumeSuffix(&text, "%") && absl::SimpleAtod(text, &percent) && percent > 0 &&
      percent <= 100) {
    to = percent / 100;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("expected a share above 0% and of at most 100%, such as 25%");
}

// "MIN..MAX"; either may be left out.
absl::Status ReadPriorities(absl::string_view text, TenantLimits& limits) {
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(text, absl::MaxSplits("..", 1));
  limits.priority_min = std::numeric_limits<int32_t>::min();
  limits.priority_max = std::numeric_limits<int32_t>::max();
  const bool read = text.find("..") != absl::string_view::npos &&
                    (ends.first.empty() || absl::SimpleAtoi(ends.first, &limits.priority_min)) &&
                    (ends.second.empty() || absl::SimpleAtoi(ends.second, &limits.priority_max));
  if (read && limits.priority_min <= limits.priority_max) return absl::OkStatus();
  return absl::InvalidArgumentError("expected MIN..MAX, such as -10..10 or 0..");
}

absl::Status ReadScopes(absl::string_view text, TenantLimits& limits) {
  limits.may_infer = limits.is_admin = false;
  for (const absl::string_view scope : absl::StrSplit(text, ',')) {
    if (scope == "infer") {
      limits.may_infer = true;
    } else if (scope == "admin") {
      limits.is_admin = true;
    } else {
      return absl::InvalidArgumentError("expected infer, admin or infer,admin");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadTiers(absl::string_view text, const ServiceTiers* tiers, TenantLimits& limits) {
  const std::vector<std::string> names = absl::StrSplit(text, ',');
  if (absl::flat_hash_set<std::string>(names.begin(), names.end()).size() != names.size())
    return absl::InvalidArgumentError("expected each tier once");
  for (const std::string& name : names)
    RETURN_IF_ERROR(tiers != nullptr ? tiers->Check(name) : ServiceTiers::CheckName(name));
  limits.service_tiers = names;
  return absl::OkStatus();
}

absl::Status ReadSetting(absl::string_view name, absl::string_view value, const ServiceTiers* tiers,
                         TenantLimits& limits) {
  if (name == "requests_per_minute") return ReadAmount(value, limits.requests_per_minute);
  if (name == "tokens_per_minute") return ReadAmount(value, limits.tokens_per_minute);
  if (name == "sequences") return ReadAmount(value, limits.sequences_max);
  if (name == "weight") {
    RETURN_IF_ERROR(ReadAmount(value, limits.weight));
    if (limits.weight <= kWeightMax) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("expected a weight of at most ", kWeightMax));
  }
  if (name == "kv_share") return ReadShare(value, limits.kv_share);
  if (name == "priority") return ReadPriorities(value, limits);
  if (name == "scopes") return ReadScopes(value, limits);
  if (name == "service_tiers") return ReadTiers(value, tiers, limits);
  if (name == "cache") {
    limits.cache_group = std::string(value);
    return CheckTenantName(value);
  }
  return absl::InvalidArgumentError(absl::StrCat("expected ", kSettings));
}

// The settings that the lines of one tenant have given so far: name, then value.
using Given = absl::btree_map<std::string, std::string>;

absl::Status ReadLine(absl::string_view line, const ServiceTiers* tiers, KeysFile& file,
                      absl::btree_map<std::string, Given>& given) {
  const std::vector<std::string> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.size() < 2) return absl::InvalidArgumentError("expected a name and a SHA-256 hash");
  RETURN_IF_ERROR(CheckTenantName(words[0]));
  const std::string hash = absl::AsciiStrToLower(words[1]);
  if (hash.size() != kHashHexBytes ||
      hash.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return absl::InvalidArgumentError("expected the key's SHA-256 as 64 hex digits");
  }
  TenantLimits& limits = file.limits[words[0]];
  for (size_t i = 2; i < words.size(); ++i) {
    const std::pair<std::string, std::string> setting =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    const absl::Status status = ReadSetting(setting.first, setting.second, tiers, limits);
    if (!status.ok())
      return absl::InvalidArgumentError(absl::StrCat("\"", words[i], "\", ", status.message()));
    const auto [earlier, is_new] = given[words[0]].insert(setting);
    if (!is_new && earlier->second != setting.second)
      return absl::InvalidArgumentError(absl::StrCat("\"", words[i], "\", an earlier line gives ",
                                                     words[0], " ", setting.first, "=",
                                                     earlier->second));
  }
  file.keys.push_back({words[0], hash, 0});
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTenantName(absl::string_view name) {
  const bool fits =
      !name.empty() && name.size() <= kTenantNameBytesMax &&
      std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '/' && c != '#';
      });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected a name of 1 to ", kTenantNameBytesMax,
                   " printable ASCII characters without spaces, \"/\" and \"#\""));
}

absl::StatusOr<KeysFile> ParseKeysFile(absl::string_view text, const ServiceTiers* tiers) {
  KeysFile file;
  absl::btree_map<std::string, Given> given;
  absl::flat_hash_set<std::string> hashes;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    absl::Status status = ReadLine(line, tiers, file, given);
    if (status.ok() && !hashes.insert(file.keys.back().hash).second)
      status = absl::InvalidArgumentError("this hash is listed already");
    if (!status.ok())
      return absl::InvalidArgumentError(absl::StrCat(number, ": ", status.message()));
    file.keys.back().line = number;
  }
  return file;
}

}  // namespace tandem::router
