#include "prefill_node/prefill_kind.h"

#include "prefill_node/prefill_core.h"

namespace tandem::prefill_node {

node::NodeKind PrefillKind() {
  return {.program = "tandem-prefill-node",
          .purpose = "Processes prompts and pushes their KV to decode nodes.",
          .role = "prefill",
          .new_core = [](const node::NodeConfig& config, const engine::EngineSpec& spec,
                         int64_t num_blocks, std::shared_ptr<guided::ConstraintCache> constraints)
              -> std::unique_ptr<node::NodeCore> {
            return std::make_unique<PrefillCore>(
                node::SchedulerOptions{.spec = spec,
                                       .num_blocks = num_blocks,
                                       .max_batch_tokens = config.max_batch_tokens,
                                       .max_sequences = config.max_sequences,
                                       .constraints = std::move(constraints)});
          }};
}

}  // namespace tandem::prefill_node
