// What makes a process a decode node.
#pragma once

#include "common/node/node_process.h"

namespace tandem::decode_node {

node::NodeKind DecodeKind();

}  // namespace tandem::decode_node
