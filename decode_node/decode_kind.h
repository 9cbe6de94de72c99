// What makes a process a decode node: its names and its core. Thread safety: a pure function.
#pragma once

#include "common/node/node_process.h"

namespace tandem::decode_node {

node::NodeKind DecodeKind();

}  // namespace tandem::decode_node
