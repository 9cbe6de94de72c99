#include "prefill_node/prefill_kind.h"

#include "prefill_node/prefill_core.h"

namespace tandem::prefill_node {

node::NodeKind PrefillKind() {
  return {.program = "tandem-prefill-node",
          .purpose = "Processes prompts and pushes their KV to decode nodes.",
          .role = "prefill",
          .new_core = [](node::NodeResources& resources) -> std::unique_ptr<node::NodeCore> {
            return std::make_unique<PrefillCore>(resources);
          }};
}

}  // namespace tandem::prefill_node
