// The CPU engine: a checkpoint's forward pass on the CPU kernels, with weights packed when it
// loads. Thread safety: common/engine/engine.h's. Owner: the node process.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/engine/cpu/weight_cache.h"
#include "common/engine/engine.h"
#include "common/engine/load_progress.h"
#include "common/model/checkpoint.h"

namespace tandem::engine {

struct CpuEngineOptions {
  // Compute threads; 0 = one per core that this process may use, at most the processor time that it
  // is granted.
  int32_t threads = 0;
  // The processor of each of `threads` compute threads; empty: they run on any processor. The first
  // thread is the engine's caller, which the engine does not pin.
  std::vector<int32_t> processors;
  // "auto", "amx", "avx512bf16", "avx512", "avx2" or "ref"; in tests "amx_emulated" too
  std::string isa = "auto";
  // "auto": the fastest class's; "portable": the numerics that avx512 and avx2 share bit for bit,
  // for mixed fleets.
  std::string numerics = "auto";
  // "auto", "bf16", "int8", "int4", "as-stored" or "f32" (portable classes)
  std::string weights = "auto";
  std::string kv_type = "bf16";  // "bf16", "int8" or "f32"
  int block_tokens = 32;         // divides 256
  int64_t context_tokens = 0;    // at most the checkpoint's; 0 = that
  WeightCacheOptions weight_cache;
  kv::ArenaMemory kv_memory = kv::ArenaMemory::kPrivate;
  OnLoadProgress on_load_progress;  // null: no report
};

// Loads the weights (dequantises and packs them, or maps a file) with all threads. The engine does
// not keep `checkpoint`. Errors: kInvalidArgument for options out of range or an ISA class this CPU
// lacks (names what it has).
absl::StatusOr<std::unique_ptr<Engine>> NewCpuEngine(const model::Checkpoint& checkpoint,
                                                     const CpuEngineOptions& options);

}  // namespace tandem::engine
