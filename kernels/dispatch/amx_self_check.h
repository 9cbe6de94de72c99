// The check that a processor's tiles compute what their specification says: products of a few small
// shapes, with tails in rows, features and k, compared with those of the emulated tiles. It finds a
// virtual machine or processor that reports AMX and computes wrong results, before any answer
// depends on it. Thread safety: any thread.
#pragma once

#include <string>

#include "kernels/api/backend.h"

namespace tandem::kernels {

// Names the first difference: packed weights or int8 products that differ in a bit, or bf16
// products that differ by more than any order of rounding explains. Empty when there is none. Takes
// about ten milliseconds.
std::string CompareProducts(const Backend& tiles, const Backend& expected);

}  // namespace tandem::kernels
