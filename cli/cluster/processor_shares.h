// How the processors of one host are shared between the nodes that it runs.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "common/runtime/processors.h"

namespace tandem::cli {

struct ProcessorShare {
  int32_t threads = 1;  // compute threads
  // The processors that only this node uses (a node's `cpus`). Empty: the kernel places the node's
  // threads.
  std::string cpus;
};

// The share of node `index` of `nodes` (≥ 1) that compute on processors. A share consists of whole
// cores of one memory node, and nodes alternate between memory nodes. Where a memory node has eight
// cores or more, one of them belongs to no share: routers and the threads that move messages run
// there. Nodes get processors of their own only if every share has four cores, some core belongs to
// no share, and no control group limits the time. Otherwise the kernel places all threads, and
// each node has an equal part of DefaultComputeThreads, and one thread at least.
ProcessorShare ShareOf(const Processors& processors, int index, int nodes);

}  // namespace tandem::cli
