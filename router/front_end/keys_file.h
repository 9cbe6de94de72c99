// The lines of a keys file: router/front_end/api_keys.h describes them. Reads and checks; keeps
// nothing.
// Thread safety: a pure function.
#pragma once

#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/core/service_tiers.h"
#include "router/front_end/tenant.h"

namespace tandem::router {

struct KeysFile {
  struct Key {
    std::string tenant;
    std::string hash;  // SHA-256, lower-case hex
    int line = 0;      // from 1
  };
  // In the order of the file. Bound: its lines.
  std::vector<Key> keys;
  // By tenant. Bound: the lines of the file.
  absl::btree_map<std::string, TenantLimits> limits;
};

// `tiers`: that the file may name; null: any. kInvalidArgument: "LINE: what is wrong with it".
absl::StatusOr<KeysFile> ParseKeysFile(absl::string_view text, const ServiceTiers* tiers);
// kInvalidArgument for a name that is not of 1 to kTenantNameBytesMax printable characters without
// spaces, "/" and "#".
absl::Status CheckTenantName(absl::string_view name);

}  // namespace tandem::router
