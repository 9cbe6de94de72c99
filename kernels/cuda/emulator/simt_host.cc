// Matrix instructions of simt_host.h, after the PTX ISA's "Matrix fragments for mma.m16n8k16" and
// "ldmatrix".
#include "kernels/cuda/emulator/simt_host.h"

#include "kernels/api/require.h"

namespace tandem::kernels::emulated {
namespace {

void LoadMatrices(uint32_t out[4], const void* row, bool transposed) {
  Halves mine;
  KERNEL_REQUIRE(reinterpret_cast<uintptr_t>(row) % 16 == 0);
  std::memcpy(&mine, row, sizeof(mine));
  const WarpExchange<Halves> rows(mine);
  const int lane = ThreadIndex() % 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint32_t halves[2];
    for (int i = 0; i < 2; ++i) {
      const int r = lane / 4, c = lane % 4 * 2 + i;
      halves[i] = transposed ? rows.of(matrix * 8 + c).of[r] : rows.of(matrix * 8 + r).of[c];
    }
    out[matrix] = halves[0] | halves[1] << 16;
  }
}

struct Fragments {
  uint32_t a[4];
  uint32_t b[2];
};
int Byte(uint32_t word, int index) { return static_cast<int8_t>(word >> (8 * index)); }
float Element(uint32_t word, int half) { return BitsToFloat((word >> (16 * half)) << 16); }

}  // namespace

void LoadMatrix4(uint32_t out[4], const void* row) { LoadMatrices(out, row, false); }
void LoadMatrix4Transposed(uint32_t out[4], const void* row) { LoadMatrices(out, row, true); }

void Mma(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  const WarpExchange<Fragments> warp({{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
  const int lane = ThreadIndex() % 32;
  for (int i = 0; i < 4; ++i) {
    // d[i] is row lane/4 (+ 8 for i ≥ 2), column 2·(lane%4) + i%2.
    const int row = lane / 4, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const Fragments from_a = warp.of(row * 4 + k % 8 / 2);
      const Fragments from_b = warp.of(column * 4 + k % 8 / 2);
      const float x = Element(from_a.a[i / 2 + k / 8 * 2], k % 2);
      const float w = Element(from_b.b[k / 8], k % 2);
      d[i] += x * w;
    }
  }
}

void MmaInt8(int32_t d[4], const uint32_t a[4], const uint32_t b[2]) {
  const WarpExchange<Fragments> warp({{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
  const int lane = ThreadIndex() % 32;
  for (int i = 0; i < 4; ++i) {
    // As above, but a word holds four k.
    const int row = lane / 4, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 32; ++k) {
      const Fragments from_a = warp.of(row * 4 + k % 16 / 4);
      const Fragments from_b = warp.of(column * 4 + k % 16 / 4);
      d[i] += Byte(from_a.a[i / 2 + k / 16 * 2], k % 4) * Byte(from_b.b[k / 16], k % 4);
    }
  }
}

}  // namespace tandem::kernels::emulated
