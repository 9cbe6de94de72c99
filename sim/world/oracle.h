// The answer that a simulated request must get, computed from its prompt alone.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "router/core/router_core.h"
#include "sim/world/schedule.h"

namespace tandem::sim {

struct OracleAnswer {
  std::vector<TokenId> tokens;
  request::FinishReason reason = request::FinishReason::kNone;
};

engine::HashEngineOptions EngineOptions(const Topology& topology);
// The `index`th request of a schedule, as a router takes it.
router::RequestInput ToInput(const SimRequest& request, int index);
// What the client gets, and what nodes may come to hold.
struct OracleAnswers {
  std::vector<OracleAnswer> answers;  // by sequence index
  // Prompt and answer of each sequence; of a beam search, those of all beams of all steps.
  std::vector<std::vector<TokenId>> sequences;
};
OracleAnswers Oracle(const engine::HashEngineOptions& engine, const router::RequestInput& input);

}  // namespace tandem::sim
