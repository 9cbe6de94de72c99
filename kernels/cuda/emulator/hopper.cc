#include "kernels/cuda/device/hopper.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/api/device_matrix.h"
#include "kernels/api/require.h"

namespace tandem::kernels::emulated {
namespace {

// A barrier as it lies in shared memory. Memory that was never initialised is all ones.
struct BarrierState {
  uint64_t expected : 20;
  uint64_t pending : 20;
  uint64_t bytes : 23;  // of bulk copies that the phase still waits for
  uint64_t parity : 1;  // of the current phase
};
static_assert(sizeof(BarrierState) == sizeof(Barrier));
constexpr int kArrivalsMax = 1024;

BarrierState Load(const Barrier* barrier) {
  BarrierState state;
  std::memcpy(&state, barrier, sizeof(state));
  KERNEL_REQUIRE(state.expected > 0 && state.expected <= kArrivalsMax);
  return state;
}
void Store(Barrier* barrier, BarrierState state) {
  const bool ends = state.pending == 0 && state.bytes == 0;
  if (ends) {
    state.pending = state.expected;
    state.parity ^= 1;
  }
  std::memcpy(barrier, &state, sizeof(state));
  if (ends) Wake(barrier);
}

// The byte at window address `address`, in the view of the asynchronous units.
char* AsyncAt(uint32_t address, int bytes) {
  const Block& block = *CurrentThread().block;
  const size_t offset = address - block.window_address;
  KERNEL_REQUIRE(address >= block.window_address &&
                 offset + static_cast<size_t>(bytes) <= block.shared_bytes);
  return block.async_view + offset;
}

// Swizzling permutes the eight chunks of 16 bytes in 128 by the address bits above them.
uint32_t Swizzled(uint32_t address) { return address ^ ((address >> 7 & 7) << 4); }

// Part of a matrix on its way: rows of bytes, swizzled or not. The block outlives it.
struct MatrixCopy {
  char* shared;
  char* async_view;
  const char* base;
  int64_t rows, row_bytes;  // of the matrix
  int64_t row, byte;        // where in it the part begins
  int part_rows, part_row_bytes;
  bool swizzled;
  Barrier* barrier;

  int bytes() const { return part_rows * part_row_bytes; }
  void Poison() const {
    std::memset(shared, 0xff, static_cast<size_t>(bytes()));
    std::memset(async_view, 0xff, static_cast<size_t>(bytes()));
  }
  void Land() const {
    constexpr int kUnit = 4;  // divides rows and places of all types
    for (int r = 0; r < part_rows; ++r) {
      for (int c = 0; c < part_row_bytes; c += kUnit) {
        const int64_t at_row = row + r, at_byte = byte + c;
        const bool inside = at_row >= 0 && at_row < rows && at_byte >= 0 && at_byte < row_bytes;
        uint32_t value = 0;
        if (inside) std::memcpy(&value, base + at_row * row_bytes + at_byte, kUnit);
        // Panels lie on multiples of 1024, so offsets have the bits that addresses have.
        const uint32_t offset = static_cast<uint32_t>(r * part_row_bytes + c);
        const uint32_t to = swizzled ? Swizzled(offset) : offset;
        std::memcpy(shared + to, &value, kUnit);
        std::memcpy(async_view + to, &value, kUnit);
      }
    }
    BarrierState state = Load(barrier);
    KERNEL_REQUIRE(state.bytes >= static_cast<uint64_t>(bytes()));
    state.bytes -= static_cast<uint64_t>(bytes());
    Store(barrier, state);
  }
  void Start() {
    async_view = AsyncAt(SharedAddress(shared), bytes());
    Poison();
    LandLater([copy = *this] { copy.Land(); });
  }
};

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

// The rows of an operand of a product, as its descriptor tells where they lie.
class Operand {
 public:
  Operand(uint64_t descriptor, bool fp8)
      : element_bytes_(fp8 ? 1 : 2),
        address_(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        leading_bytes_(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        stride_bytes_(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4),
        swizzled_(descriptor >> 62 == 1) {
    // Neither the other swizzles nor a base offset are used here.
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

// What the running thread's part of a 64 × columns product is made of: two rows of a and a quarter
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

// Adds one row's products with one column to `before`, in the way of the operands' type.
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

void InitBarrier(Barrier* barrier, int arrivals) {
  KERNEL_REQUIRE(arrivals > 0 && arrivals <= kArrivalsMax && SharedAddress(barrier) % 8 == 0);
  CurrentThread().has_unfenced_barriers = true;
  BarrierState state = {};
  state.expected = static_cast<uint64_t>(arrivals) & 0xfffff;
  state.pending = state.expected;
  std::memcpy(barrier, &state, sizeof(state));
}

void FenceBarrierInit() { CurrentThread().has_unfenced_barriers = false; }

void FenceProxyAsync() {
  const Block& block = *CurrentThread().block;
  std::memcpy(block.async_view, block.shared, block.shared_bytes);
}

void Arrive(Barrier* barrier) {
  BarrierState state = Load(barrier);
  KERNEL_REQUIRE(state.pending > 0);
  --state.pending;
  Store(barrier, state);
}

void ArriveExpecting(Barrier* barrier, int bytes) {
  BarrierState state = Load(barrier);
  KERNEL_REQUIRE(state.pending > 0 && bytes >= 0 && bytes < 1 << 20);
  state.bytes += static_cast<uint64_t>(bytes);
  --state.pending;
  Store(barrier, state);
}

void WaitPhase(Barrier* barrier, int parity) {
  while (Load(barrier).parity == static_cast<uint64_t>(parity)) SleepOn(barrier);
}

void MoveRegistersTo(int count, bool giving) {
  Thread& thread = CurrentThread();
  Block& block = *thread.block;
  const int more = count - thread.registers;
  const bool right_way = giving ? more <= 0 : more >= 0;
  KERNEL_REQUIRE(right_way);
  while (block.free_registers < more) SleepOn(&block.free_registers);
  block.free_registers -= more;
  thread.registers = count;
  Wake(&block.free_registers);
  WarpBarrier();
}

PanelMap DescribePanels(const PanelSource& source, DeviceStream&) {
  // What cuTensorMapEncodeTiled demands of these.
  KERNEL_REQUIRE(source.element_bytes == 1 || source.element_bytes == 2);
  KERNEL_REQUIRE(reinterpret_cast<uintptr_t>(source.base) % 16 == 0);
  KERNEL_REQUIRE(source.columns * source.element_bytes % 16 == 0);
  KERNEL_REQUIRE(source.rows > 0 && source.columns > 0);
  KERNEL_REQUIRE(source.panel_rows > 0 && source.panel_rows <= 256);
  return {source};
}

void CopyPanel(char* panel, const PanelMap& map, int row, int column, Barrier* barrier) {
  const PanelSource& source = map.source;
  KERNEL_REQUIRE(SharedAddress(panel) % kPanelAlignment == 0);
  MatrixCopy copy = {};
  copy.shared = panel;
  copy.base = static_cast<const char*>(source.base);
  copy.rows = source.rows;
  copy.row_bytes = source.columns * source.element_bytes;
  copy.row = row;
  copy.byte = int64_t{column} * source.element_bytes;
  copy.part_rows = source.panel_rows;
  copy.part_row_bytes = kPanelRowBytes;
  copy.swizzled = true;
  copy.barrier = barrier;
  copy.Start();
}

RunMap DescribeRuns(const RunSource& source, DeviceStream&) {
  KERNEL_REQUIRE(reinterpret_cast<uintptr_t>(source.base) % 16 == 0 && source.columns % 4 == 0);
  KERNEL_REQUIRE(source.rows > 0 && source.columns > 0);
  KERNEL_REQUIRE(source.count > 0 && source.count <= 256 && source.count % 4 == 0);
  return {source};
}

void CopyRun(float* run, const RunMap& map, int row, int column, Barrier* barrier) {
  constexpr int kBytes = sizeof(float);
  KERNEL_REQUIRE(SharedAddress(run) % kRunAlignment == 0);
  MatrixCopy copy = {};
  copy.shared = reinterpret_cast<char*>(run);
  copy.base = reinterpret_cast<const char*>(map.source.base);
  copy.rows = map.source.rows;
  copy.row_bytes = map.source.columns * kBytes;
  copy.row = row;
  copy.byte = int64_t{column} * kBytes;
  copy.part_rows = 1;
  copy.part_row_bytes = map.source.count * kBytes;
  copy.barrier = barrier;
  copy.Start();
}

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
    // Nobody may write accumulators either while a product on them is unfinished.
    KERNEL_REQUIRE(hidden.values.size() == size && FloatToBits(d[0]) == FloatToBits(kHidden));
    ++hidden.unfinished;
    return hidden;
  }
  hidden_.push_back({d, std::vector<float>(d, d + size), 1});
  for (size_t i = 0; i < size; ++i) d[i] = kHidden;
  return hidden_.back();
}

CacheMap DescribeCache(const KvLayer& layer, int tokens_max, DeviceStream&) {
  KERNEL_REQUIRE(reinterpret_cast<uintptr_t>(layer.base) % 16 == 0);
  KERNEL_REQUIRE(layer.block_stride_bytes % 16 == 0);
  return {layer, layer.shape.block_tokens < tokens_max ? layer.shape.block_tokens : tokens_max};
}

void CopyCachePanel(char* panel, const CacheMap& map, const CachePlace& place, Barrier* barrier) {
  const KvShape& shape = map.layer.shape;
  KERNEL_REQUIRE(place.slab >= 0 && place.slab < 2 * shape.num_kv_heads && place.block >= 0);
  const char* slab =
      static_cast<const char*>(map.layer.base) + place.block * map.layer.block_stride_bytes +
      int64_t{place.slab} * shape.block_tokens * shape.head_dim * int64_t{sizeof(Bf16Bits)};
  const PanelSource source = {slab, shape.block_tokens, shape.head_dim, map.tokens};
  CopyPanel(panel, {source}, place.token, place.column, barrier);
}

void AddRegisterProductOf(float* d, int columns, const uint32_t a[4], uint64_t b) {
  struct Words {
    uint32_t of[4];
  };
  const Words mine = {{a[0], a[1], a[2], a[3]}};
  const WarpExchange<Words> warp(mine);
  Product product = {d, columns, true, b, true};
  product.a_in_registers = true;
  product.a_words = a;
  std::memcpy(product.a_were, a, sizeof(product.a_were));
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 16; ++k) {
      const uint32_t word = warp.of(ThreadIndex() % 32 / 4 * 4 + k % 8 / 2).of[half + k / 8 * 2];
      product.a_rows[half][k] = BitsToFloat(word >> (16 * (k % 2)) << 16);
    }
  }
  CurrentThread().products.Start(product);
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
