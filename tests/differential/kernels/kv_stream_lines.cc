// Drives one worker's stream of K and V a line at a time, compiled for AVX2.
#include "kv_stream_lines.h"

#include "kernels/cpu/kv_stream.h"

namespace tandem::kernels::TANDEM_ISA {

std::vector<const char*> LinesFrom(const StreamCall& call, int64_t task) {
  const AttentionArgs& args = *call.args;
  std::vector<RowBlock> blocks;
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    RowBlock& block = blocks.emplace_back();
    block = {};
    block.sequence = s;
    block.num_rows = 1;
  }
  const int32_t kv_heads = args.layer.shape.num_kv_heads;
  const int64_t head_tasks = (kv_heads + call.heads - 1) / call.heads;
  const KvTasks tasks = {&args,      blocks.data(), args.num_sequences * head_tasks,
                         head_tasks, call.heads,    1};
  KvStream stream(&tasks);
  stream.Begin(task);
  std::vector<const char*> lines;
  while (const char* line = stream.Next(64)) lines.push_back(line);
  return lines;
}

}  // namespace tandem::kernels::TANDEM_ISA
