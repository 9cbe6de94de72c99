#include "common/node/kv_disk_path.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tandem::node {

std::string KvDiskPath(absl::string_view folder, absl::string_view node_id) {
  const std::string name = absl::StrReplaceAll(node_id, {{"/", "%2F"}, {"%", "%25"}});
  return absl::StrCat(folder, "/", name, ".kv");
}

}  // namespace tandem::node
