// The API key with which a holder of the fleet's secret may ask a router for its status: `tandem
// up` has no other key, because the keys file holds only hashes of them. Thread safety: a pure
// function.
#pragma once

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/keyed_tag.h"

namespace tandem::rpc {

// REQUIRES: the secret is not empty.
inline std::string OperatorKey(absl::string_view fleet_secret) {
  return absl::StrCat("fleet-",
                      absl::BytesToHexString(KeyedTag(fleet_secret, "operator key", "status")));
}

}  // namespace tandem::rpc
