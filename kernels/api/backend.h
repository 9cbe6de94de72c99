// A backend: every operator as a function pointer, and the choice among backends at run time.
//
// `ref` is the oracle: plain loops, double accumulation. The `cpu` classes share one numerics: FP32
// FMA in a fixed order of 16 lanes gives the same bits on AVX2 and on AVX-512, so their nodes mix.
// Thread safety: backends are constants.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/api/elementwise.h"
#include "kernels/api/gemm.h"
#include "kernels/api/kv_cache.h"
#include "kernels/api/rms_norm.h"
#include "kernels/api/rope.h"
#include "kernels/api/sampling.h"

namespace tandem::kernels {

enum class IsaClass { kRef, kAvx2, kAvx512 };

struct Backend {
  IsaClass isa = IsaClass::kRef;
  const char* name = "";      // "ref", "cpu-avx2", "cpu-avx512"
  const char* numerics = "";  // equal strings promise equal bits, e.g. "cpu-fp32x16-v1"

  PackedBytesFn packed_bytes = nullptr;
  PackRowsFn pack_rows = nullptr;
  GemmFn gemm = nullptr;
  RmsNormFn rms_norm = nullptr;
  RopeFn rope = nullptr;
  GatedActivationFn gated_activation = nullptr;
  AddFn add = nullptr;
  ScaleFn scale = nullptr;
  KvWriteFn kv_write = nullptr;
  KvReadFn kv_read = nullptr;
  AttentionFn attention = nullptr;
  SampleFn sample = nullptr;
};

// The backend of a class, or nullptr when this processor (or operating system) lacks its features.
const Backend* FindBackend(IsaClass isa);
// The fastest class this processor has; `ref` where it has not even AVX2 and FMA.
const Backend& BestBackend();
// "ref", "avx2" or "avx512"; false when `name` is none of them.
bool ParseIsaClass(const char* name, IsaClass* isa);

}  // namespace tandem::kernels
