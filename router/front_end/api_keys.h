// The API keys that a router accepts over HTTP and gRPC, and the tenants that own them. The file
// holds SHA-256 hashes, so reading it reveals no key. One line per key:
//   TENANT  SHA256-IN-HEX  [SETTING=VALUE]...      # comment
//   requests_per_minute=N  tokens_per_minute=N     quotas of the tenant, over all its keys
//   sequences=N                                    sequences that are answered at a time
//   kv_share=N%                                    KV that its sequences hold (see below)
//   weight=N                                       its share of the cluster's work (default: 1)
//   priority=MIN..MAX                              priorities it may ask for (default: 0 or more)
//   service_tiers=NAME[,NAME]...                   tiers it may ask for; the first by default
//   cache=GROUP                                    shares cached prompts with tenants of the group
//   scopes=infer,admin                             what it may do (default: infer)
// Lines with the same tenant are its several keys. Settings belong to the tenant: any of its lines
// may give one, and two lines may not disagree.
//
// kv_share has two sides. Running: the router places a tenant's sequence only while the blocks that
// its sequences hold on all decode nodes, with the new one's prompt, are within the share of all
// their blocks; until then it waits in the queue. What an answer grows by afterwards, and what
// other routers place until the nodes' next report (a second), may exceed it. Cached: a node on
// which the tenant's running and cached blocks exceed the share of its pool evicts the tenant's own
// cached blocks, before it touches others'.
//
// Thread safety: any thread. Errors are statuses; each front end turns them into its protocol's
// reply.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/core/service_tiers.h"
#include "router/front_end/failed_keys.h"
#include "router/front_end/tenant.h"

namespace tandem::router {

inline constexpr size_t kTenantNameBytesMax = 64;
// Wrong keys in a row that one source may send before it must wait: see FailedKeys.
inline constexpr int64_t kWrongKeysInARow = 20;

class ApiKeys {
 public:
  // kNotFound for a file that cannot be read, kInvalidArgument naming a bad line.
  // `tiers`: that the file may name; null: any.
  static absl::StatusOr<std::unique_ptr<ApiKeys>> Load(
      const std::string& path, int64_t wrong_keys_in_a_row = kWrongKeysInARow,
      const ServiceTiers* tiers = nullptr);
  static absl::StatusOr<std::unique_ptr<ApiKeys>> Parse(absl::string_view text,
                                                        const std::string& path,
                                                        const ServiceTiers* tiers = nullptr);

  // Tenants that are remembered after the file names them no more.
  static constexpr size_t kDroppedMax = 1024;

  // Takes the file's present keys and settings; a file without any takes all keys away. Tenants
  // that it still names, or names again, go on with what they have used; calls that are being
  // answered go on. Errors as Load: the old keys then stay.
  absl::Status Reload();
  // Reloads a file that has changed since the last look. Logs what it did, and returns it; the old
  // keys stay when the file cannot be used. nullopt: it has not changed. Call every second or so.
  std::optional<absl::Status> ReloadIfChanged();

  // In order of their names.
  std::vector<std::shared_ptr<Tenant>> tenants() const;

  // The tenant of the key in "Bearer KEY"; counts nothing. kUnauthenticated if the key is missing
  // or not known.
  absl::StatusOr<std::shared_ptr<Tenant>> Identify(absl::string_view authorization) const;
  // The same for a request, which it counts. Errors: as Identify and Tenant::CountRequest.
  absl::StatusOr<std::shared_ptr<Tenant>> Admit(absl::string_view authorization,
                                                absl::Time now) const;
  // Identify and Admit for a caller at `source`. A source that has sent too many wrong keys must
  // wait: FailedKeys::MayTry's error, whatever key it sends. A call without a key is no try.
  absl::StatusOr<std::shared_ptr<Tenant>> IdentifyFrom(absl::string_view source,
                                                       absl::string_view authorization,
                                                       absl::Time now);
  absl::StatusOr<std::shared_ptr<Tenant>> AdmitFrom(absl::string_view source,
                                                    absl::string_view authorization,
                                                    absl::Time now);

 private:
  using Tenants = absl::btree_map<std::string, std::shared_ptr<Tenant>>;
  using Keys = absl::flat_hash_map<std::string, std::shared_ptr<Tenant>>;
  // What identifies a version of the file.
  struct Version {
    int64_t modified_ns = 0, bytes = 0;
    uint64_t inode = 0;
    friend bool operator==(const Version&, const Version&) = default;
  };

  ApiKeys(std::string path, int64_t wrong_keys_in_a_row, const ServiceTiers* tiers)
      : path_(std::move(path)), failed_(wrong_keys_in_a_row) {
    if (tiers != nullptr) tiers_ = *tiers;
  }
  absl::Status Take(absl::string_view text);
  static Version VersionOf(const std::string& path);

  const std::string path_;
  std::optional<ServiceTiers> tiers_;  // that the file may name; none: any
  FailedKeys failed_;
  mutable absl::Mutex mutex_;
  Version version_ ABSL_GUARDED_BY(mutex_);
  // By hash, in lower-case hex. A look-up's timing reveals at most the beginning of a hash.
  // Bound: the lines of the keys file.
  Keys keys_ ABSL_GUARDED_BY(mutex_);
  // By name. Bound: the lines of the keys file.
  Tenants tenants_ ABSL_GUARDED_BY(mutex_);
  // Tenants of earlier files, by name: their calls may go on, and one that comes back would start
  // with full quotas otherwise. Bound: kDroppedMax (1,024), and those with calls.
  Tenants dropped_ ABSL_GUARDED_BY(mutex_);
};

// SHA-256 in lower-case hex.
std::string Sha256Hex(absl::string_view text);
// Of the hash of the key in "Bearer KEY", as many digits as name a key in lists and logs. Empty
// without a key.
inline constexpr size_t kKeyNameDigits = 12;
std::string KeyName(absl::string_view authorization);

}  // namespace tandem::router
