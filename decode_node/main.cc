// tandem-decode-node: receives prompts' KV and generates tokens in a continuous batch.
#include "decode_node/decode_kind.h"

int main(int argc, char** argv) {
  return tandem::node::NodeMain(argc, argv, tandem::decode_node::DecodeKind());
}
