// How the processors of one host are shared between the nodes that it runs.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "common/runtime/processors.h"

namespace tandem::cli {

struct ProcessorShare {
  int32_t threads = 1;  // compute threads
  // The processors that are the node's alone (a node's `cpus`); empty: the node's threads run
  // wherever the kernel puts them.
  std::string cpus;
};

// The share of node `index` of `nodes` (≥ 1) that compute on processors. A share is whole cores of
// one memory node; the nodes take the memory nodes alternately. A memory node with eight cores or
// more leaves one core out of all shares: routers and the threads that move messages run there.
// `cpus` is set only where every share has four cores, at least one core is left out, and no
// control group limits the time. Elsewhere the kernel places the threads, as many as there are
// cores.
ProcessorShare ShareOf(const Processors& processors, int index, int nodes);

}  // namespace tandem::cli
