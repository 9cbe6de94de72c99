#include "router/fleet/registration.h"

#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"

namespace tandem::router {
namespace {

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("registration: ", field, " is ", value, ", expected ", low, " to ", high));
}

template <typename T>
absl::Status CheckEqual(absl::string_view field, const std::string& node_id, const T& node,
                        const T& router) {
  if (node == router) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("node ", node_id, " has ", field, " ", node, ", this router serves ", router));
}

}  // namespace

absl::Status CheckRegistration(const v1::Registration& registration, const ModelIdentity& model) {
  const std::string& id = registration.node_id();
  if (const absl::Status status = CheckNodeId(id); !status.ok())
    return absl::InvalidArgumentError(
        absl::StrCat("registration: node_id: expected ", status.message()));
  if (registration.role() != v1::NODE_ROLE_PREFILL && registration.role() != v1::NODE_ROLE_DECODE)
    return absl::InvalidArgumentError(absl::StrCat("registration of ", id, ": role is ",
                                                   static_cast<int>(registration.role()),
                                                   ", expected prefill or decode"));
  RETURN_IF_ERROR(CheckRange("block_tokens", registration.block_tokens(), 1, 65536));
  constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
  RETURN_IF_ERROR(CheckRange("num_blocks", registration.num_blocks(), 1, kInt32Max));
  RETURN_IF_ERROR(CheckRange("lend_blocks_max", registration.lend_blocks_max(), 0,
                             registration.lending_address().empty() ? 0 : kInt32Max));
  RETURN_IF_ERROR(CheckRange("stored_blocks_max", registration.stored_blocks_max(), 0, kInt32Max));
  RETURN_IF_ERROR(CheckRange("context_tokens", registration.context_tokens(), 1, kInt32Max));
  RETURN_IF_ERROR(CheckRange("max_sequences", registration.max_sequences(), 0, kInt32Max));
  RETURN_IF_ERROR(CheckRange("max_batch_tokens", registration.max_batch_tokens(), 0, kInt32Max));
  if (registration.numerics_id().empty())
    return absl::InvalidArgumentError(
        absl::StrCat("registration of ", id, ": numerics_id is empty"));
  RETURN_IF_ERROR(CheckEqual("model", id, registration.model_name(), model.name));
  RETURN_IF_ERROR(
      CheckEqual("model fingerprint", id, registration.model_fingerprint(), model.fingerprint));
  return CheckEqual("vocab_size", id, registration.vocab_size(), model.vocab_size);
}

absl::Status CheckBlockNames(const v1::Registration& registration, const kv::BlockKey& key) {
  const std::string& names = registration.block_names();
  if (names == key.names()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "node ", registration.node_id(), " names blocks by ",
      names.empty() ? "an earlier release's hash" : absl::CHexEscape(names.substr(0, 64)),
      ", this router by ", key.names(),
      ": expected the same release and the same fleet secret in all processes of a fleet"));
}

const char* RoleName(v1::NodeRole role) {
  return role == v1::NODE_ROLE_PREFILL ? "prefill" : "decode";
}

}  // namespace tandem::router
