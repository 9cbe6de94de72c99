#include "sim/trace/trace_prompt.h"

#include <algorithm>

namespace tandem::sim {
namespace {

constexpr int kBitsPerToken = 16, kNameTokens = 4;
// Marks a prompt whose trace names no blocks, so that it is unlike those of named ones.
constexpr TokenId kUnnamed = 1 << 16;

}  // namespace

std::vector<TokenId> MakePrompt(const TraceRequest& request, int64_t block_tokens) {
  std::vector<TokenId> tokens(static_cast<size_t>(request.prompt_tokens), 0);
  const bool named = !request.blocks.empty();
  for (size_t begin = 0, block = 0; begin < tokens.size();
       begin += static_cast<size_t>(block_tokens), ++block) {
    const uint64_t name = named ? request.blocks[block] : static_cast<uint64_t>(request.line);
    for (size_t i = 0; i < kNameTokens && begin + i < tokens.size(); ++i) {
      const auto bits = static_cast<TokenId>((name >> (kBitsPerToken * i)) & 0xffff);
      tokens[begin + i] = named ? bits : bits | kUnnamed;
    }
  }
  return tokens;
}

}  // namespace tandem::sim
