// The Backend of this instruction-set class (kernels/api/backend.h): the operators that ops.h
// declares.
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/ops.h"

namespace tandem::kernels::TANDEM_ISA {

extern constexpr Backend kBackend = {
#if defined(__AMX_TILE__)
    .isa = IsaClass::kAmx,
    .name = "cpu-amx",
    .numerics = "cpu-amx-v3",
    .dot_products = true,
    .kv_in_pairs = true,
#elif defined(TANDEM_TILE_CLASS)
    .isa = IsaClass::kAmxEmulated,
    .name = "cpu-amx-emulated",
    .numerics = "cpu-amx-emulated-v3",
    .dot_products = true,
    .kv_in_pairs = true,
#elif defined(__AVX512BF16__)
    .isa = IsaClass::kAvx512Bf16,
    .name = "cpu-avx512bf16",
    .numerics = "cpu-bf16dot-v2",
    .dot_products = true,
    .kv_in_pairs = true,
#elif defined(__AVX512F__)
    .isa = IsaClass::kAvx512,
    .name = "cpu-avx512",
    .numerics = kPortableNumerics,
#else
    .isa = IsaClass::kAvx2,
    .name = "cpu-avx2",
    .numerics = kPortableNumerics,
#endif
    .packed_bytes = PackedBytes,
    .pack_rows = PackRows,
    .gemm = Gemm,
    .rms_norm = RmsNorm,
    .rope = Rope,
    .gated_activation = GatedActivation,
    .add = AddInto,
    .scale = ScaleBy,
    .kv_write = KvWrite,
    .kv_read = KvRead,
    .attention = Attention,
    .attention_partials = AttentionPartials,
    .merge_partials = MergePartials,
    .sample = Sample,
#if defined(TANDEM_TILE_CLASS)
    .peak_rate = TilePeakRate,
    .int8_peak_rate = TileInt8PeakRate,
#else
    .peak_rate = PeakRate,
    .int8_peak_rate = Int8PeakRate,
#endif
};

}  // namespace tandem::kernels::TANDEM_ISA
