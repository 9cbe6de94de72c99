#include "kernels/dispatch/amx_detection.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

#if defined(TANDEM_KERNELS_X86)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tandem::kernels {
namespace {

// Bits of XCR0: TILECFG and TILEDATA. Only the latter needs a permission.
constexpr uint64_t kTileData = uint64_t{1} << 18;
constexpr uint64_t kTileState = uint64_t{1} << 17 | kTileData;

}  // namespace

std::string JudgeAmxFacts(const AmxFacts& facts) {
  if (!facts.tile) return "the processor has no AMX-TILE";
  if (!facts.bf16) return "the processor has no AMX-BF16";
  if (!facts.int8) return "the processor has no AMX-INT8";
  if (!facts.avx512) return "the processor has AMX, but not all of AVX-512 F, DQ, BW, VL and VNNI";
  if (!facts.xgetbv) return "the system does not report which register state it saves (no OSXSAVE)";
  if ((facts.kept & kTileState) != kTileState) {
    return absl::StrCat("the system does not save the tile registers (XCR0 is ",
                        absl::Hex(facts.kept), ", expected bits 17 and 18)");
  }
  if (facts.tile_bytes != 1024 || facts.tile_row_bytes != 64 || facts.tiles != 8 ||
      facts.tile_rows != 16 || facts.product_rows < 16 || facts.product_row_bytes < 64) {
    return absl::StrCat("the processor's palette 1 has ", facts.tiles, " tiles of ",
                        facts.tile_rows, " rows of ", facts.tile_row_bytes, " bytes (",
                        facts.tile_bytes, " in all) and products of ", facts.product_rows, " by ",
                        facts.product_row_bytes,
                        ", expected 8 tiles of 16 rows of 64 bytes (1024), products of 16 by 64");
  }
  return "";
}

#if defined(TANDEM_KERNELS_X86)

namespace {

uint64_t StateKept() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

}  // namespace

AmxFacts FindAmxFacts() {
  AmxFacts facts;
  __builtin_cpu_init();
  facts.avx512 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                 __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512vnni");
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(1, 0, &a, &b, &c, &d) != 0) facts.xgetbv = (c >> 27 & 1) != 0;
  if (facts.xgetbv) facts.kept = StateKept();
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
    facts.bf16 = (d >> 22 & 1) != 0;
    facts.tile = (d >> 24 & 1) != 0;
    facts.int8 = (d >> 25 & 1) != 0;
  }
  if (!facts.tile) return facts;
  if (__get_cpuid_count(0x1d, 1, &a, &b, &c, &d) != 0) {
    facts.tile_bytes = a >> 16;
    facts.tile_row_bytes = b & 0xffff;
    facts.tiles = b >> 16;
    facts.tile_rows = c & 0xffff;
  }
  if (__get_cpuid_count(0x1e, 0, &a, &b, &c, &d) != 0) {
    facts.product_rows = b & 0xff;
    facts.product_row_bytes = b >> 8 & 0xffff;
  }
  return facts;
}

std::string RequestTileState() {
  // <asm/prctl.h> of systems older than AMX lacks these.
  constexpr int kGetPermission = 0x1022, kRequestPermission = 0x1023;
  constexpr int kTileDataFeature = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileDataFeature) != 0) {
    return absl::StrCat("the system refuses access to the tile registers: ", std::strerror(errno));
  }
  uint64_t granted = 0;
  if (syscall(SYS_arch_prctl, kGetPermission, &granted) != 0) {
    return absl::StrCat(
        "the system does not report whether it grants access to the tile registers: ",
        std::strerror(errno));
  }
  if ((granted & kTileData) == 0) {
    return absl::StrCat(
        "the system granted access to the tile registers, but reports that it did not (permissions "
        "are ",
        absl::Hex(granted), ", expected bit 18)");
  }
  return "";
}

#else

AmxFacts FindAmxFacts() { return {}; }
std::string RequestTileState() { return "this is not an x86 processor"; }

#endif

}  // namespace tandem::kernels
