// A backend: every operator as a function pointer, and the choice among backends at run time.
//
// `ref` is the oracle: plain loops, double accumulation. The classes avx2 and avx512 share one
// portable numerics: FP32 FMA in a fixed order of 16 lanes gives the same bits on both, so their
// nodes mix. avx512bf16 computes products of bf16 weights and of a bf16 cache with `vdpbf16ps`: a
// numerics of its own, twice as fast where the processor has a full-rate unit for it. amx computes
// products of bf16 and of int8 weights and of a bf16 cache on tile registers, everything else as
// avx512 does; its bf16 products are a third numerics. amx_emulated is amx with tile registers
// emulated in plain C++, and runs on any processor with AVX2. Tests of amx use it, and FindBackend
// compares amx with it. Thread safety: backends are constants.
#pragma once

#include <string>

#include "kernels/api/attention.h"
#include "kernels/api/attention_partials.h"
#include "kernels/api/elementwise.h"
#include "kernels/api/gemm.h"
#include "kernels/api/kv_cache.h"
#include "kernels/api/rms_norm.h"
#include "kernels/api/rope.h"
#include "kernels/api/sampling.h"

namespace tandem::kernels {

enum class IsaClass { kRef, kAvx2, kAvx512, kAvx512Bf16, kAmx, kAmxEmulated };

struct Backend {
  IsaClass isa = IsaClass::kRef;
  const char* name = "";      // "ref", "cpu-avx2", "cpu-avx512", "cpu-avx512bf16", "cpu-amx"
  const char* numerics = "";  // equal strings promise equal bits, e.g. "cpu-fp32x16-v2"
  // Products with kBf16 weights round x to bf16, and operators take and give bf16 activations.
  bool dot_products = false;
  bool kv_in_pairs = false;  // how a bf16 cache lies (kernels/cpu/kv_cache.cc)

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
  AttentionPartialsFn attention_partials = nullptr;
  MergePartialsFn merge_partials = nullptr;
  SampleFn sample = nullptr;
  // Measures, in about a millisecond, the most multiply-adds a second that one thread does in the
  // type that products with kBf16 weights use. nullptr: unknown.
  double (*peak_rate)() = nullptr;
  double (*int8_peak_rate)() = nullptr;  // the same for products with kInt8 weights
};

// The numerics id that avx2 and avx512 share.
inline constexpr const char* kPortableNumerics = "cpu-fp32x16-v2";

// The backend of a class, or nullptr when this processor (or operating system) lacks its features.
// The first call for kAmx asks the system for the tile state and runs the self-check of the tiles.
const Backend* FindBackend(IsaClass isa);
// Why FindBackend returns nullptr: "the processor has no AMX-TILE"; empty where it returns a
// backend.
std::string WhyMissing(IsaClass isa);
// The fastest class this processor has, by its features and, for amx and avx512bf16, by a
// measurement of about a millisecond: on some processors `vdpbf16ps` is slower than two FMAs.
const Backend& BestBackend();
// The fastest class of the portable numerics; `ref` on processors without AVX2 and FMA.
const Backend& BestPortableBackend();
// "ref", "avx2", "avx512", "avx512bf16", "amx" or "amx_emulated"; false when `name` is none of
// them.
bool ParseIsaClass(const char* name, IsaClass* isa);

}  // namespace tandem::kernels
