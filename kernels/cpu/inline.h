// TANDEM_INLINE, and the check that TANDEM_ISA names a class, for every header of this folder. Each
// class compiles the folder into a namespace of its own, TANDEM_ISA, and everything in its headers
// is force-inlined or has internal linkage (v16.h says why). Thread safety: macros only.
#pragma once

#if !defined(TANDEM_ISA)
#error "compile kernels/cpu with TANDEM_ISA=avx2, avx512 or another class"
#endif

#define TANDEM_INLINE inline __attribute__((always_inline))
