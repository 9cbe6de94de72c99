#include "router/front_end/api_keys.h"

#include <openssl/evp.h>
#include <sys/stat.h>

#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/read_file.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "router/front_end/keys_file.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kScheme = "bearer ";
constexpr size_t kKeysFileBytesMax = size_t{64} << 20;

bool HoldsKey(absl::string_view authorization) {
  return absl::StartsWithIgnoreCase(authorization, kScheme);
}

// REQUIRES: HoldsKey.
std::string HashOf(absl::string_view authorization) {
  return Sha256Hex(absl::StripAsciiWhitespace(authorization.substr(kScheme.size())));
}

}  // namespace

std::string Sha256Hex(absl::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

std::string KeyName(absl::string_view authorization) {
  return HoldsKey(authorization) ? HashOf(authorization).substr(0, kKeyNameDigits) : "";
}

absl::StatusOr<std::unique_ptr<ApiKeys>> ApiKeys::Load(const std::string& path,
                                                       int64_t wrong_keys_in_a_row,
                                                       const ServiceTiers* tiers) {
  auto keys = std::unique_ptr<ApiKeys>(new ApiKeys(path, wrong_keys_in_a_row, tiers));
  RETURN_IF_ERROR(keys->Reload());
  return keys;
}

absl::StatusOr<std::unique_ptr<ApiKeys>> ApiKeys::Parse(absl::string_view text,
                                                        const std::string& path,
                                                        const ServiceTiers* tiers) {
  auto keys = std::unique_ptr<ApiKeys>(new ApiKeys(path, kWrongKeysInARow, tiers));
  RETURN_IF_ERROR(keys->Take(text));
  return keys;
}

ApiKeys::Version ApiKeys::VersionOf(const std::string& path) {
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0) return {};
  return {int64_t{file.st_mtim.tv_sec} * 1'000'000'000 + file.st_mtim.tv_nsec, file.st_size,
          file.st_ino};
}

absl::Status ApiKeys::Reload() {
  // Before reading: a change while the file is read is seen at the next look.
  const Version version = VersionOf(path_);
  {
    absl::MutexLock lock(&mutex_);
    version_ = version;
  }
  ASSIGN_OR_RETURN(const std::string text, ReadFile("api-keys", path_, kKeysFileBytesMax));
  return Take(text);
}

std::optional<absl::Status> ApiKeys::ReloadIfChanged() {
  const Version version = VersionOf(path_);
  {
    absl::MutexLock lock(&mutex_);
    if (version == version_) return std::nullopt;
  }
  absl::Status status = Reload();
  if (status.ok()) {
    Log(LogLevel::kInfo, "API keys reloaded", {{"file", path_}});
  } else {
    Log(LogLevel::kWarning, "API keys not reloaded: the earlier ones stay",
        {{"why", status.message()}});
  }
  return status;
}

absl::Status ApiKeys::Take(absl::string_view text) {
  absl::StatusOr<KeysFile> file = ParseKeysFile(text, tiers_.has_value() ? &*tiers_ : nullptr);
  if (!file.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("api-keys: ", path_, ":", file.status().message()));
  }
  absl::MutexLock lock(&mutex_);
  dropped_.merge(tenants_);
  Tenants tenants;
  for (const auto& [name, limits] : file->limits) {
    const auto known = dropped_.find(name);
    std::shared_ptr<Tenant> tenant =
        known == dropped_.end() ? std::make_shared<Tenant>(name) : known->second;
    if (known != dropped_.end()) dropped_.erase(known);
    tenant->SetLimits(limits);
    tenants.emplace(name, std::move(tenant));
  }
  keys_.clear();
  for (const KeysFile::Key& key : file->keys) keys_.emplace(key.hash, tenants.at(key.tenant));
  tenants_ = std::move(tenants);
  for (auto it = dropped_.begin(); it != dropped_.end() && dropped_.size() > kDroppedMax;) {
    const bool has_calls = it->second.use_count() > 1;
    it = has_calls ? std::next(it) : dropped_.erase(it);
  }
  return absl::OkStatus();
}

std::vector<std::shared_ptr<Tenant>> ApiKeys::tenants() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<Tenant>> tenants;
  for (const auto& [name, tenant] : tenants_) tenants.push_back(tenant);
  return tenants;
}

absl::StatusOr<std::shared_ptr<Tenant>> ApiKeys::Identify(absl::string_view authorization) const {
  if (!HoldsKey(authorization)) {
    return absl::UnauthenticatedError("authorization: missing, expected \"Bearer\" and an API key");
  }
  const std::string hash = HashOf(authorization);
  absl::MutexLock lock(&mutex_);
  const auto found = keys_.find(hash);
  if (found == keys_.end()) {
    return absl::UnauthenticatedError("authorization: unknown API key");
  }
  return found->second;
}

absl::StatusOr<std::shared_ptr<Tenant>> ApiKeys::Admit(absl::string_view authorization,
                                                       absl::Time now) const {
  ASSIGN_OR_RETURN(std::shared_ptr<Tenant> tenant, Identify(authorization));
  RETURN_IF_ERROR(tenant->CountRequest(now));
  return tenant;
}

absl::StatusOr<std::shared_ptr<Tenant>> ApiKeys::IdentifyFrom(absl::string_view source,
                                                              absl::string_view authorization,
                                                              absl::Time now) {
  if (!HoldsKey(authorization)) return Identify(authorization);
  RETURN_IF_ERROR(failed_.MayTry(source, now));
  absl::StatusOr<std::shared_ptr<Tenant>> tenant = Identify(authorization);
  if (tenant.ok()) {
    failed_.OnRightKey(source);
  } else {
    failed_.OnWrongKey(source, now);
  }
  return tenant;
}

absl::StatusOr<std::shared_ptr<Tenant>> ApiKeys::AdmitFrom(absl::string_view source,
                                                           absl::string_view authorization,
                                                           absl::Time now) {
  ASSIGN_OR_RETURN(std::shared_ptr<Tenant> tenant, IdentifyFrom(source, authorization, now));
  RETURN_IF_ERROR(tenant->CountRequest(now));
  return tenant;
}

}  // namespace tandem::router
