// What makes a process a prefill node: its names and its core. Thread safety: a pure function.
#pragma once

#include "common/node/node_process.h"

namespace tandem::prefill_node {

node::NodeKind PrefillKind();

}  // namespace tandem::prefill_node
