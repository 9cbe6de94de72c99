#include "decode_node/decode_kind.h"

#include "decode_node/decode_core.h"

namespace tandem::decode_node {

node::NodeKind DecodeKind() {
  return {.program = "tandem-decode-node",
          .purpose = "Receives prompts' KV from prefill nodes and generates tokens.",
          .role = "decode",
          .new_core = [](node::NodeResources& resources) -> std::unique_ptr<node::NodeCore> {
            return std::make_unique<DecodeCore>(resources);
          }};
}

}  // namespace tandem::decode_node
