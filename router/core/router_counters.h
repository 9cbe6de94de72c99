// Counts that a router's status and metrics report. They only rise.
// Thread safety: none; the core's strand owns them.
#pragma once

#include <cstdint>

namespace tandem::router {

struct RouterCounters {
  int64_t requests_finished = 0, requests_failed = 0;
  int64_t duplicate_tokens = 0, diverged_tokens = 0;
  int64_t sequences_migrated = 0, kv_tokens_moved = 0, kv_tokens_recomputed = 0;
};

}  // namespace tandem::router
