// Where a node keeps its KV blocks on disk. Thread safety: a pure function.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem::node {

// The file in `folder` of the node `node_id`. An id may be any text; two nodes never share a file.
std::string KvDiskPath(absl::string_view folder, absl::string_view node_id);

}  // namespace tandem::node
