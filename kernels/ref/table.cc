// The reference Backend (kernels/api/backend.h): the operators that ops.h declares.
#include "kernels/ref/ops.h"

namespace tandem::kernels::ref {

extern constexpr Backend kBackend = {
    .isa = IsaClass::kRef,
    .name = "ref",
    .numerics = "ref-double-v2",
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
};

}  // namespace tandem::kernels::ref
