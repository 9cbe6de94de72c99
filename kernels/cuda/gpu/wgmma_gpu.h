// The warpgroup matrix instructions of sm_90a: m64nNk16 of bf16 and m64nNk32 of e4m3, one function
// for each N that tiles use (PTX ISA 8.0, "wgmma.mma_async"). Kernels include it through
// simt/hopper.h only. Thread safety: called by all threads of a warpgroup together.
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu/simt_gpu.h"

// The accumulators d[i], … as operands of an asm statement, and its names for d[0] to d[count - 1].
#define TANDEM_WGMMA_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TANDEM_WGMMA_8(i) TANDEM_WGMMA_4(i), TANDEM_WGMMA_4(i + 4)
#define TANDEM_WGMMA_16(i) TANDEM_WGMMA_8(i), TANDEM_WGMMA_8(i + 8)
#define TANDEM_WGMMA_32(i) TANDEM_WGMMA_16(i), TANDEM_WGMMA_16(i + 16)
#define TANDEM_WGMMA_64(i) TANDEM_WGMMA_32(i), TANDEM_WGMMA_32(i + 32)
#define TANDEM_WGMMA_128(i) TANDEM_WGMMA_64(i), TANDEM_WGMMA_64(i + 64)
#define TANDEM_WGMMA_NAMES_4 "%0, %1, %2, %3"
#define TANDEM_WGMMA_NAMES_8 TANDEM_WGMMA_NAMES_4 ", %4, %5, %6, %7"
#define TANDEM_WGMMA_NAMES_16 TANDEM_WGMMA_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TANDEM_WGMMA_NAMES_32                                      \
  TANDEM_WGMMA_NAMES_16                                            \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
  "%28, %29, %30, %31"
#define TANDEM_WGMMA_NAMES_64                                           \
  TANDEM_WGMMA_NAMES_32                                                 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, " \
  "%45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "   \
  "%58, %59, %60, %61, %62, %63"
#define TANDEM_WGMMA_NAMES_128                                             \
  TANDEM_WGMMA_NAMES_64                                                    \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "    \
  "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, " \
  "%91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, "  \
  "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, "     \
  "%115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "     \
  "%126, %127"

// d[64×kN] (+)= a · b, operands of `form` in shared memory, K in rows; `accumulate` 0 overwrites d.
// `count` accumulators; a, b and accumulate are the operands behind them. `signs` and what follows
// them: neither operand negated, and of bf16 neither transposed.
#define TANDEM_WGMMA_OF(name, form, signs, count, n, b_name, accumulate_name)                      \
  TANDEM_DEVICE void name(float(&d)[count], uint64_t a, uint64_t b, uint32_t accumulate) {         \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #accumulate_name                             \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n form " {" TANDEM_WGMMA_NAMES_##count \
                 "}, %" #count ", %" #b_name ", p, " signs ";\n}"                                  \
                 : TANDEM_WGMMA_##count(0)                                                         \
                 : "l"(a), "l"(b), "r"(accumulate));                                               \
  }
#define TANDEM_WGMMA_SHARED(...) \
  TANDEM_WGMMA_OF(WgmmaInstruction, "k16.f32.bf16.bf16", "1, 1, 0, 0", __VA_ARGS__)
#define TANDEM_WGMMA_FP8(...) \
  TANDEM_WGMMA_OF(WgmmaFp8Instruction, "k32.f32.e4m3.e4m3", "1, 1", __VA_ARGS__)

// d[64×kN] += a[64×16] · b[16×kN], a in registers, b in shared memory with N in rows. a1 to b are
// the operands behind a[0].
#define TANDEM_WGMMA_REGISTERS(count, n, a1, a2, a3, b_name)                                   \
  TANDEM_DEVICE void WgmmaRegisterInstruction(float(&d)[count], const uint32_t(&a)[4],         \
                                              uint64_t b) {                                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n                                        \
                 "k16.f32.bf16.bf16 {" TANDEM_WGMMA_NAMES_##count                              \
                 "}, {%" #count ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_name ", 1, 1, 1, 1;\n" \
                 : TANDEM_WGMMA_##count(0)                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
  }

namespace tandem::kernels::cuda {

TANDEM_WGMMA_SHARED(4, 8, 5, 6)
TANDEM_WGMMA_SHARED(8, 16, 9, 10)
TANDEM_WGMMA_SHARED(16, 32, 17, 18)
TANDEM_WGMMA_SHARED(32, 64, 33, 34)
TANDEM_WGMMA_SHARED(64, 128, 65, 66)
TANDEM_WGMMA_SHARED(128, 256, 129, 130)

TANDEM_WGMMA_FP8(4, 8, 5, 6)
TANDEM_WGMMA_FP8(8, 16, 9, 10)
TANDEM_WGMMA_FP8(16, 32, 17, 18)
TANDEM_WGMMA_FP8(32, 64, 33, 34)
TANDEM_WGMMA_FP8(64, 128, 65, 66)

TANDEM_WGMMA_REGISTERS(32, 64, 33, 34, 35, 36)
TANDEM_WGMMA_REGISTERS(64, 128, 65, 66, 67, 68)
TANDEM_WGMMA_REGISTERS(128, 256, 129, 130, 131, 132)

}  // namespace tandem::kernels::cuda

#undef TANDEM_WGMMA_OF
#undef TANDEM_WGMMA_SHARED
#undef TANDEM_WGMMA_FP8
#undef TANDEM_WGMMA_REGISTERS
#undef TANDEM_WGMMA_NAMES_4
#undef TANDEM_WGMMA_NAMES_8
#undef TANDEM_WGMMA_NAMES_16
#undef TANDEM_WGMMA_NAMES_32
#undef TANDEM_WGMMA_NAMES_64
#undef TANDEM_WGMMA_NAMES_128
#undef TANDEM_WGMMA_4
#undef TANDEM_WGMMA_8
#undef TANDEM_WGMMA_16
#undef TANDEM_WGMMA_32
#undef TANDEM_WGMMA_64
#undef TANDEM_WGMMA_128
