// The bound on a node's name, which every process that reads one enforces: the node itself at its
// start, routers when it registers and reports, other nodes on lending links.
// Thread safety: pure functions.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem {

inline constexpr size_t kNodeIdBytesMax = 128;

// kInvalidArgument unless `id` has 1 to kNodeIdBytesMax bytes. The message follows "expected ".
inline absl::Status CheckNodeId(absl::string_view id) {
  if (!id.empty() && id.size() <= kNodeIdBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("1 to ", kNodeIdBytesMax, " bytes, not ", id.size()));
}

}  // namespace tandem
