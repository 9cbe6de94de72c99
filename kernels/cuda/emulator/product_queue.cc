#include "kernels/cuda/emulator/product_queue.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/api/device_matrix.h"
#include "kernels/api/require.h"
#include "kernels/cuda/emulator/async_view.h"
#include "kernels/cuda/emulator/simt_host.h"
#include "kernels/cuda/emulator/thread_block.h"
#include "kernels/cuda/hopper_types.h"

namespace tandem::kernels::emulated {
namespace {

// e4m3 as fp32; the code of all ones is NaN.
float WidenE4m3(uint8_t code) {
  static const std::vector<float> values = [] {
    std::vector<float> all;
    for (int i = 0; i < 256; ++i) {
      all.push_back((i & 0x7f) == 0x7f ? BitsToFloat(0x7fffffffu)
                                       : E4m3ToFloat(static_cast<uint8_t>(i)));
    }
    return all;
  }();
  return values[code];
}

// The rows of a product's operand, read from where its descriptor says.
class Operand {
 public:
  Operand(uint64_t descriptor, bool fp8)
      : element_bytes_(fp8 ? 1 : 2),
        address_(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        leading_bytes_(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        stride_bytes_(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4),
        swizzled_(descriptor >> 62 == 1) {
    // Kernels use neither the other swizzles nor a base offset.
    KERNEL_REQUIRE(descriptor >> 62 <= 1 && (descriptor >> 49 & 7) == 0);
  }

  // Element k of row `row`; transposed: element `row` of row k.
  float At(int row, int k, bool transposed) const {
    if (transposed) return AtTransposed(row, k);
    const uint32_t group = static_cast<uint32_t>(row / 8) * stride_bytes_;
    uint32_t address = address_ + group;
    const int byte = k * element_bytes_;
    if (swizzled_) {
      address = Swizzled(address + static_cast<uint32_t>(row % 8 * 128 + byte));
    } else {  // blocks of eight rows by 16 bytes
      address += static_cast<uint32_t>(byte / 16) * leading_bytes_ +
                 static_cast<uint32_t>(row % 8 * 16 + byte % 16);
    }
    return Read(address);
  }

 private:
  float Read(uint32_t address) const {
    if (element_bytes_ == 1) return WidenE4m3(static_cast<uint8_t>(*AsyncAt(address, 1)));
    uint16_t bits;
    std::memcpy(&bits, AsyncAt(address, sizeof(bits)), sizeof(bits));
    return BitsToFloat(uint32_t{bits} << 16);
  }
  // Rows of 64 elements; the next 64 lie a leading offset on, the next eight rows a stride on.
  float AtTransposed(int n, int k) const {
    KERNEL_REQUIRE(swizzled_ && element_bytes_ == 2);  // of bytes there is no transposed form
    const uint32_t address = address_ + static_cast<uint32_t>(n / 64) * leading_bytes_ +
                             static_cast<uint32_t>(k / 8) * stride_bytes_ +
                             static_cast<uint32_t>(k % 8 * 128 + n % 64 * 2);
    return Read(Swizzled(address));
  }

  const int element_bytes_;
  const uint32_t address_, leading_bytes_, stride_bytes_;
  const bool swizzled_;
};

// The operands of the running thread's part of a 64 × columns product: two rows of a and a quarter
// of b's columns.
std::vector<float> ReadOperands(const Product& product) {
  const Operand of_a(product.a, product.fp8), of_b(product.b, product.fp8);
  const int thread = ThreadIndex() % kWarpgroupSize;
  std::vector<float> operands;
  operands.reserve(static_cast<size_t>((2 + product.columns / 4) * product.k()));
  for (int half = 0; half < 2; ++half) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * half;
    for (int k = 0; k < product.k(); ++k) {
      operands.push_back(product.a_in_registers ? product.a_rows[half][k] : of_a.At(row, k, false));
    }
  }
  for (int i = 0; i < product.columns / 4; ++i) {
    const int column = i / 2 * 8 + thread % 4 * 2 + i % 2;
    for (int k = 0; k < product.k(); ++k) {
      operands.push_back(of_b.At(column, k, product.b_transposed));
    }
  }
  return operands;
}

// Adds one row's products with one column to `before`, as the tensor core does for this operand
// type.
float AddProducts(const Product& product, const float* row, const float* column, float before) {
  if (!product.fp8) {
    double sum = 0;
    for (int k = 0; k < product.k(); ++k) sum += double{row[k]} * column[k];
    return static_cast<float>(before + sum);
  }
  double addends[33] = {before};
  for (int k = 0; k < product.k(); ++k) addends[k + 1] = double{row[k]} * column[k];
  return AddInTensorCore(addends, product.k() + 1);
}

const float kHidden = BitsToFloat(0xffffffffu);

}  // namespace

float AddInTensorCore(const double* addends, int count) {
  constexpr int kBits = 13;
  double most = 0;
  for (int i = 0; i < count; ++i) {
    if (!(std::abs(addends[i]) <= std::numeric_limits<float>::max())) {
      return std::numeric_limits<float>::quiet_NaN();
    }
    most = std::max(most, std::abs(addends[i]));
  }
  if (most == 0) return 0;
  const double unit = std::ldexp(1.0, std::ilogb(most) - kBits);
  double sum = 0;  // of whole units, exact
  for (int i = 0; i < count; ++i) sum += std::trunc(addends[i] / unit);
  if (sum == 0) return 0;
  const double kept = std::ldexp(1.0, std::max(0, std::ilogb(sum) - kBits));
  return static_cast<float>(std::trunc(sum / kept) * kept * unit);
}

ProductQueue::Accumulators& ProductQueue::Hide(float* d, int columns) {
  const size_t size = static_cast<size_t>(columns / 2);
  for (Accumulators& hidden : hidden_) {
    if (hidden.d != d) continue;
    // A thread may not write accumulators either while a product on them is unfinished.
    KERNEL_REQUIRE(hidden.values.size() == size && FloatToBits(d[0]) == FloatToBits(kHidden));
    ++hidden.unfinished;
    return hidden;
  }
  hidden_.push_back({d, std::vector<float>(d, d + size), 1});
  for (size_t i = 0; i < size; ++i) d[i] = kHidden;
  return hidden_.back();
}

void ProductQueue::Start(const Product& product) {
  KERNEL_REQUIRE(fenced_);
  Hide(product.d, product.columns);
  Started started = {product, {}};
  if (DrawNumber() % 2 == 0) started.operands = ReadOperands(product);
  open_.push_back(std::move(started));
}

void ProductQueue::Commit() {
  groups_.push_back(std::move(open_));
  open_.clear();
}

void ProductQueue::Finish(const Started& started) {
  const Product& product = started.product;
  const bool operand_stayed =
      product.a_words == nullptr ||
      std::memcmp(product.a_words, product.a_were, 4 * sizeof(uint32_t)) == 0;
  KERNEL_REQUIRE(operand_stayed);
  const std::vector<float> operands =
      started.operands.empty() ? ReadOperands(product) : started.operands;
  const float* columns = operands.data() + 2 * product.k();
  for (size_t at = 0; at < hidden_.size(); ++at) {
    Accumulators& hidden = hidden_[at];
    if (hidden.d != product.d) continue;
    for (int i = 0; i < product.columns / 2; ++i) {
      // d[4j + 2h + e]: the thread's row h, its column 2j + e.
      const float* row = operands.data() + i / 2 % 2 * product.k();
      const float* column = columns + (i / 4 * 2 + i % 2) * product.k();
      float& value = hidden.values[static_cast<size_t>(i)];
      value = AddProducts(product, row, column, product.accumulate ? value : 0.0f);
    }
    if (--hidden.unfinished > 0) return;
    std::memcpy(hidden.d, hidden.values.data(), hidden.values.size() * sizeof(float));
    hidden_.erase(hidden_.begin() + static_cast<std::ptrdiff_t>(at));
    return;
  }
}

void ProductQueue::Wait(size_t pending) {
  fenced_ = false;
  while (groups_.size() > pending) {
    for (const Started& started : groups_.front()) Finish(started);
    groups_.erase(groups_.begin());
  }
}

}  // namespace tandem::kernels::emulated
