// FindBackend, BestBackend and the other functions of kernels/api/backend.h: the table of backends,
// and the choice among them by the processor's features.
#include <cstring>
#include <initializer_list>

#include "kernels/api/backend.h"
#include "kernels/dispatch/amx_detection.h"
#include "kernels/dispatch/amx_self_check.h"

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
namespace amx {
extern const Backend kBackend;
}
namespace amx_emulated {
extern const Backend kBackend;
}

namespace {

// The features of a class without tiles, in words, and whether the processor has them all. GCC and
// clang's checks include the operating system's support for the wide registers.
struct Features {
  bool found;
  const char* what;
};

Features FeaturesOf(IsaClass isa) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case IsaClass::kAvx512:
      return {avx512, "AVX-512 F, DQ, BW and VL"};
    case IsaClass::kAvx512Bf16:
      return {
          avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"),
          "AVX-512 F, DQ, BW, VL, BF16 and VNNI"};
    default:
      return {avx2, "AVX2 and FMA"};
  }
}

std::string FindAmxMissing() {
  std::string why = JudgeAmxFacts(FindAmxFacts());
  if (why.empty()) why = RequestTileState();
  if (why.empty()) why = CompareProducts(amx::kBackend, amx_emulated::kBackend);
  return why;
}

}  // namespace
#endif

std::string WhyMissing(IsaClass isa) {
  if (isa == IsaClass::kRef) return "";
#if defined(TANDEM_KERNELS_X86)
  if (isa == IsaClass::kAmx) {
    static const std::string why = FindAmxMissing();
    return why;
  }
  const Features features = FeaturesOf(isa);
  return features.found ? "" : std::string("the processor lacks some of ") + features.what;
#else
  return "this is not an x86 processor";
#endif
}

const Backend* FindBackend(IsaClass isa) {
  if (isa == IsaClass::kRef) return &ref::kBackend;
#if defined(TANDEM_KERNELS_X86)
  if (!WhyMissing(isa).empty()) return nullptr;
  switch (isa) {
    case IsaClass::kAvx2:
      return &avx2::kBackend;
    case IsaClass::kAvx512:
      return &avx512::kBackend;
    case IsaClass::kAvx512Bf16:
      return &avx512bf16::kBackend;
    case IsaClass::kAmx:
      return &amx::kBackend;
    case IsaClass::kAmxEmulated:
      return &amx_emulated::kBackend;
    case IsaClass::kRef:
      break;
  }
#endif
  return nullptr;
}

const Backend& BestBackend() {
#if defined(TANDEM_KERNELS_X86)
  const Backend* best = FindBackend(IsaClass::kAvx512Bf16);
  if (best == nullptr || !avx512bf16::DotProductsAreFaster()) best = &BestPortableBackend();
  const Backend* tiles = FindBackend(IsaClass::kAmx);
  if (tiles != nullptr && tiles->peak_rate() > best->peak_rate()) return *tiles;
  return *best;
#else
  return BestPortableBackend();
#endif
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
  constexpr Named kNames[] = {
      {"ref", IsaClass::kRef},       {"avx2", IsaClass::kAvx2},
      {"avx512", IsaClass::kAvx512}, {"avx512bf16", IsaClass::kAvx512Bf16},
      {"amx", IsaClass::kAmx},       {"amx_emulated", IsaClass::kAmxEmulated}};
  for (const Named& named : kNames) {
    if (std::strcmp(named.name, name) != 0) continue;
    *isa = named.isa;
    return true;
  }
  return false;
}

}  // namespace tandem::kernels
