// The check that a processor's tiles compute what they are specified to: products of a few small
// shapes, with tails in rows, features and k, against those of the emulated tiles. A virtual
// machine or a processor that answers CPUID and computes something else is found here, before any
// answer depends on it.
#pragma once

#include <string>

#include "kernels/api/backend.h"

namespace tandem::kernels {

// What differs: packed weights or int8 products in a bit, or bf16 products by more than any order
// of rounding explains; empty when nothing does. Takes about ten milliseconds.
std::string CompareProducts(const Backend& tiles, const Backend& expected);

}  // namespace tandem::kernels
