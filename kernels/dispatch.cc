// The table of backends and the choice among them by the processor's features.
#include <cstring>
#include <initializer_list>

#include "kernels/api/backend.h"

namespace tandem::kernels {

namespace ref {
extern const Backend kBackend;
}
#if defined(TANDEM_KERNELS_X86)
namespace avx2 {
extern const Backend kBackend;
}
namespace avx512 {
extern const Backend kBackend;
}
namespace avx512bf16 {
extern const Backend kBackend;
bool DotProductsAreFaster();
}  // namespace avx512bf16
#endif

const Backend* FindBackend(IsaClass isa) {
  if (isa == IsaClass::kRef) return &ref::kBackend;
#if defined(TANDEM_KERNELS_X86)
  // GCC and clang's checks include the operating system's support for the wide registers.
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == IsaClass::kAvx2 && has_avx2) return &avx2::kBackend;
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (isa == IsaClass::kAvx512 && has_avx512) return &avx512::kBackend;
  if (isa == IsaClass::kAvx512Bf16 && has_avx512 && __builtin_cpu_supports("avx512bf16") &&
      __builtin_cpu_supports("avx512vnni")) {
    return &avx512bf16::kBackend;
  }
#endif
  return nullptr;
}

const Backend& BestBackend() {
#if defined(TANDEM_KERNELS_X86)
  const Backend* dot = FindBackend(IsaClass::kAvx512Bf16);
  if (dot != nullptr && avx512bf16::DotProductsAreFaster()) return *dot;
#endif
  return BestPortableBackend();
}

const Backend& BestPortableBackend() {
  for (IsaClass isa : {IsaClass::kAvx512, IsaClass::kAvx2}) {
    if (const Backend* backend = FindBackend(isa)) return *backend;
  }
  return ref::kBackend;
}

bool ParseIsaClass(const char* name, IsaClass* isa) {
  struct Named {
    const char* name;
    IsaClass isa;
  };
  constexpr Named kNames[] = {{"ref", IsaClass::kRef},
                              {"avx2", IsaClass::kAvx2},
                              {"avx512", IsaClass::kAvx512},
                              {"avx512bf16", IsaClass::kAvx512Bf16}};
  for (const Named& named : kNames) {
    if (std::strcmp(named.name, name) != 0) continue;
    *isa = named.isa;
    return true;
  }
  return false;
}

}  // namespace tandem::kernels
