// A bf16 value as memory holds it: the upper half of an fp32. Thread safety: a value.
#pragma once

#include <cstdint>

namespace tandem::kernels {

using Bf16Bits = uint16_t;

}  // namespace tandem::kernels
