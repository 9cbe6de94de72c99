#include "decode_node/decode_kind.h"

#include "decode_node/decode_core.h"

namespace tandem::decode_node {

node::NodeKind DecodeKind() {
  return {.program = "tandem-decode-node",
          .purpose = "Receives prompts' KV from prefill nodes and generates tokens.",
          .role = "decode",
          .new_core = [](const node::NodeConfig& config, const engine::EngineSpec& spec,
                         int64_t num_blocks, std::shared_ptr<guided::ConstraintCache> constraints)
              -> std::unique_ptr<node::NodeCore> {
            return std::make_unique<DecodeCore>(
                node::SchedulerOptions{.spec = spec,
                                       .num_blocks = num_blocks,
                                       .max_batch_tokens = config.max_batch_tokens,
                                       .max_sequences = config.max_sequences,
                                       .constraints = std::move(constraints)});
          }};
}

}  // namespace tandem::decode_node
