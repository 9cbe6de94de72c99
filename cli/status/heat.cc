#include "cli/status/heat.h"

#include "absl/strings/str_cat.h"
#include "cli/status/quantities.h"

namespace tandem::cli {

std::string HeatOf(const v1::NodeStatus& node) {
  const v1::NodeLoad& load = node.load();
  if (node.state() == "lost") return "lost";
  if (node.last_heard_ms() >= kSilentMs) {
    return absl::StrCat("silent ", ShortAge(node.last_heard_ms() / 1000));
  }
  if (node.state() == "draining") return "draining";
  if (load.sequences_waiting() > 0) {
    return absl::StrCat(ShortCount(static_cast<double>(load.sequences_waiting())), " waiting");
  }
  const int used = Percent(load.blocks_used() + load.blocks_quarantined(), load.blocks_total());
  return used >= kHotBlocksPercent ? absl::StrCat("KV ", used, "%") : "";
}

}  // namespace tandem::cli
