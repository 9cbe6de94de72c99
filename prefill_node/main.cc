// tandem-prefill-node: processes prompts and pushes their KV to decode nodes.
#include "prefill_node/prefill_kind.h"

int main(int argc, char** argv) {
  return tandem::node::NodeMain(argc, argv, tandem::prefill_node::PrefillKind());
}
