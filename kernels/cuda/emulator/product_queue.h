// One emulated thread's part of its warpgroup's asynchronous matrix products.
//
// The queue reads operands when a product starts or as late as the waits allow, whichever a random
// draw says. Accumulators hold NaN from the start of the first product on them to the wait that
// ends the last. Thread safety: its emulated thread. Owner: that thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::kernels::emulated {

// The thread's part of d[64×columns] (+)= a · b, d: [columns / 2].
struct Product {
  float* d;
  int columns;
  bool accumulate;
  uint64_t b;
  bool b_transposed = false;
  uint64_t a = 0;
  bool a_in_registers = false;
  float a_rows[2][16] = {};           // of a in registers: the thread's two rows
  const uint32_t* a_words = nullptr;  // and where they are, to see that they stay as they were
  uint32_t a_were[4] = {};
  bool fp8 = false;  // operands are e4m3, 32 in k, else bf16, 16 in k

  int k() const { return fp8 ? 32 : 16; }
};

// The sum of products of e4m3 numbers, and of what was there before, as Hopper's tensor cores are
// reported to form it (docs/adr/0029): all are aligned to the largest, of which 13 bits behind the
// leading one are kept, cut off there, and added exactly; the result is cut to as many bits.
float AddInTensorCore(const double* addends, int count);

class ProductQueue {
 public:
  void Start(const Product& product);
  void Fence() { fenced_ = true; }
  void Commit();
  void Wait(size_t pending);
  bool empty() const { return open_.empty() && groups_.empty(); }

 private:
  struct Started {
    Product product;
    // The thread's two rows of a, then its columns of b, k() numbers each; empty: still to be read.
    std::vector<float> operands;
  };
  // The values that accumulators get once their products end.
  struct Accumulators {
    float* d;
    std::vector<float> values;
    int unfinished;
  };

  Accumulators& Hide(float* d, int columns);
  void Finish(const Started& started);

  bool fenced_ = false;
  std::vector<Started> open_;
  std::vector<std::vector<Started>> groups_;  // oldest first
  std::vector<Accumulators> hidden_;
};

}  // namespace tandem::kernels::emulated
