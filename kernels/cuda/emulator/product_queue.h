// One emulated thread's part of its warpgroup's asynchronous matrix products.
//
// Operands are read at the start or as late as the waits allow, whichever is drawn. Accumulators
// hold NaN from the start of the first product on them to the wait that ends the last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::kernels::emulated {

class ProductQueue {
 public:
  // Starts d (+)= a · b for the thread's part of a 64 × columns product; d: [columns / 2].
  void Start(float* d, int columns, uint64_t a, uint64_t b, bool accumulate);
  void Fence() { fenced_ = true; }
  void Commit();
  void Wait(size_t pending);
  bool empty() const { return open_.empty() && groups_.empty(); }

 private:
  struct Product {
    float* d;
    int columns;
    uint64_t a, b;
    bool accumulate;
    std::vector<double> sums;  // empty: operands are still to be read
  };
  // What accumulators will hold once their products end.
  struct Accumulators {
    float* d;
    std::vector<float> values;
    int unfinished;
  };

  Accumulators& Hide(float* d, int columns);
  void Finish(const Product& product);

  bool fenced_ = false;
  std::vector<Product> open_;
  std::vector<std::vector<Product>> groups_;  // oldest first
  std::vector<Accumulators> hidden_;
};

}  // namespace tandem::kernels::emulated
