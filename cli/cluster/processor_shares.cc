#include "cli/cluster/processor_shares.h"

#include <algorithm>
#include <map>
#include <vector>

#include "common/base/check.h"

namespace tandem::cli {
namespace {

// A memory node with so many cores leaves one of them to others than compute threads.
constexpr size_t kCoresToSpareOne = 8;
// On fewer a node's compute threads would keep its others from running.
constexpr size_t kShareMin = 4;

struct MemoryNode {
  std::vector<int32_t> cores;
  size_t nodes = 0;  // that share them

  // Cores before those of share `index`: shares follow one another, and what is left over when all
  // are equal goes to the first of them only where a core was set apart before.
  size_t SharesBefore(size_t index) const {
    const bool spares = cores.size() >= kCoresToSpareOne;
    const size_t shared = cores.size() - (spares ? 1 : 0);
    return shared / nodes * index + (spares ? std::min(index, shared % nodes) : 0);
  }
};

std::vector<MemoryNode> MemoryNodesOf(const Processors& processors, int nodes) {
  std::map<int32_t, MemoryNode> by_id;
  for (const Processor& core : OneOfEachCore(processors)) {
    by_id[core.memory_node].cores.push_back(core.core);
  }
  std::vector<MemoryNode> memory;
  for (auto& [id, node] : by_id) memory.push_back(std::move(node));
  for (int i = 0; i < nodes; ++i) ++memory[static_cast<size_t>(i) % memory.size()].nodes;
  return memory;
}

bool CanHaveTheirOwn(const Processors& processors, const std::vector<MemoryNode>& memory) {
  size_t cores = 0, shared_out = 0;
  for (const MemoryNode& node : memory) {
    cores += node.cores.size();
    if (node.nodes == 0) continue;
    // The last share is the smallest.
    if (node.SharesBefore(node.nodes) - node.SharesBefore(node.nodes - 1) < kShareMin) return false;
    shared_out += node.SharesBefore(node.nodes);
  }
  return !processors.limited() && shared_out < cores;
}

}  // namespace

ProcessorShare ShareOf(const Processors& processors, int index, int nodes) {
  TANDEM_CHECK(0 <= index && index < nodes, "node ", index, " of ", nodes);
  const std::vector<MemoryNode> memory = MemoryNodesOf(processors, nodes);
  if (!CanHaveTheirOwn(processors, memory)) {
    return {std::max(1, DefaultComputeThreads(processors) / nodes), ""};
  }
  const auto position = static_cast<size_t>(index);
  const MemoryNode& node = memory[position % memory.size()];
  const size_t turn = position / memory.size();
  const auto begin = node.cores.begin();
  const std::vector<int32_t> cores(
      begin + static_cast<std::ptrdiff_t>(node.SharesBefore(turn)),
      begin + static_cast<std::ptrdiff_t>(node.SharesBefore(turn + 1)));
  std::vector<int32_t> ids;
  for (const Processor& processor : processors.usable) {
    if (std::find(cores.begin(), cores.end(), processor.core) != cores.end()) {
      ids.push_back(processor.id);
    }
  }
  return {static_cast<int32_t>(cores.size()), FormatProcessorList(ids)};
}

}  // namespace tandem::cli
