#include "kernels/cuda/emulator/hopper_host.h"

#include <algorithm>
#include <cstring>

#include "kernels/api/bf16.h"
#include "kernels/api/require.h"
#include "kernels/cuda/emulator/async_view.h"

namespace tandem::kernels::emulated {
namespace {

// The bits of a barrier in shared memory. Uninitialised memory is all ones.
struct BarrierState {
  uint64_t expected : 20;
  uint64_t pending : 20;
  // Of bulk copies that the phase still waits for. Below zero while another block's copies to this
  // one landed before a thread here expected them.
  int64_t bytes : 23;
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

// The barrier at the same place of another block of the cluster.
Barrier* InBlock(Barrier* barrier, const Block& other) {
  const std::ptrdiff_t at = reinterpret_cast<char*>(barrier) - CurrentThread().block->shared;
  return reinterpret_cast<Barrier*>(other.shared + at);
}

// A bulk copy under way of a part of a matrix: rows of bytes, swizzled or not. The block that it
// lands in outlives it.
struct MatrixCopy {
  Block* block;  // that it lands in
  char* shared;
  char* async_view;
  const char* base;
  int64_t rows, row_bytes;  // of the matrix
  int64_t row, byte;        // where in it the part begins
  int part_rows, part_row_bytes;
  bool swizzled;
  bool multicast;
  Barrier* barrier;

  int bytes() const { return part_rows * part_row_bytes; }
  void Poison() const {
    std::memset(shared, 0xff, static_cast<size_t>(bytes()));
    std::memset(async_view, 0xff, static_cast<size_t>(bytes()));
  }
  void Land() const {
    KERNEL_REQUIRE(!block->has_ended());
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
    // Bytes that nothing expects yet end no phase while a thread has still to arrive.
    KERNEL_REQUIRE(state.bytes >= bytes() || (multicast && state.pending > 0));
    state.bytes -= bytes();
    Store(barrier, state);
  }
  void Start() {
    block = CurrentThread().block;
    async_view = AsyncAt(SharedAddress(shared), bytes());
    Poison();
    LandLater([copy = *this] { copy.Land(); });
  }
  // Lands at the same place of another block, and counts on the barrier at the same place there.
  void StartIn(Block& other) {
    const Block& own = *CurrentThread().block;
    const std::ptrdiff_t at = shared - own.shared;
    async_view = AsyncAt(SharedAddress(shared), bytes()) - own.async_view + other.async_view;
    barrier = InBlock(barrier, other);
    shared = other.shared + at;
    block = &other;
    multicast = true;
    Poison();
    LandLater([copy = *this] { copy.Land(); });
  }
};

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

void ArriveIn(int rank, Barrier* barrier) { Arrive(InBlock(barrier, BlockOfCluster(rank))); }

void ArriveExpecting(Barrier* barrier, int bytes) {
  BarrierState state = Load(barrier);
  KERNEL_REQUIRE(state.pending > 0 && bytes >= 0 && bytes < 1 << 20);
  state.bytes += bytes;
  --state.pending;
  Store(barrier, state);
}

void WaitPhase(Barrier* barrier, int parity) {
  while (Load(barrier).parity == static_cast<uint64_t>(parity)) SleepOn(barrier);
}

bool HasEnded(Barrier* barrier, int parity) {
  return Load(barrier).parity != static_cast<uint64_t>(parity);
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
  // The conditions that cuTensorMapEncodeTiled checks.
  KERNEL_REQUIRE(source.element_bytes == 1 || source.element_bytes == 2);
  KERNEL_REQUIRE(reinterpret_cast<uintptr_t>(source.base) % 16 == 0);
  KERNEL_REQUIRE(source.columns * source.element_bytes % 16 == 0);
  KERNEL_REQUIRE(source.rows > 0 && source.columns > 0);
  KERNEL_REQUIRE(source.panel_rows > 0 && source.panel_rows <= 256);
  return {source};
}

namespace {

MatrixCopy PanelCopy(char* panel, const PanelMap& map, const MatrixPlace& place, Barrier* barrier) {
  const PanelSource& source = map.source;
  MatrixCopy copy = {};
  copy.shared = panel;
  copy.base = static_cast<const char*>(source.base);
  copy.rows = source.rows;
  copy.row_bytes = source.columns * source.element_bytes;
  copy.row = place.row;
  copy.byte = int64_t{place.column} * source.element_bytes;
  copy.part_rows = source.panel_rows;
  copy.part_row_bytes = kPanelRowBytes;
  copy.swizzled = true;
  copy.barrier = barrier;
  return copy;
}

}  // namespace

void CopyPanel(char* panel, const PanelMap& map, int row, int column, Barrier* barrier) {
  KERNEL_REQUIRE(SharedAddress(panel) % kPanelAlignment == 0);
  PanelCopy(panel, map, {row, column}, barrier).Start();
}

void CopyPanelToBlocks(uint32_t blocks, char* panel, const PanelMap& map, const MatrixPlace& place,
                       Barrier* barrier) {
  KERNEL_REQUIRE(SharedAddress(panel) % kPanelAlignment == 0 && blocks != 0);
  for (int rank = 0; blocks >> rank != 0; ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    PanelCopy(panel, map, place, barrier).StartIn(BlockOfCluster(rank));
  }
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

StripMap DescribeStrips(const StripTarget& target, DeviceStream&) {
  KERNEL_REQUIRE(reinterpret_cast<uintptr_t>(target.base) % 16 == 0 && target.columns % 8 == 0);
  KERNEL_REQUIRE(target.rows > 0 && target.columns > 0);
  KERNEL_REQUIRE(target.strip_rows > 0 && target.strip_rows <= 256);
  return {target};
}

void StoreStrip(const StripMap& map, const void* strip, int row, int column) {
  const StripTarget& target = map.target;
  KERNEL_REQUIRE(SharedAddress(strip) % kRunAlignment == 0 && row >= 0 && column >= 0);
  const int64_t stride = target.columns * int64_t{sizeof(Bf16Bits)};
  const int64_t byte = column * int64_t{sizeof(Bf16Bits)};
  const int64_t rows = std::clamp<int64_t>(target.rows - row, 0, target.strip_rows);
  const int64_t row_bytes = std::clamp<int64_t>(stride - byte, 0, kStripRowBytes);
  CurrentThread().stores.Start({AsyncAt(SharedAddress(strip), target.strip_rows * kStripRowBytes),
                                static_cast<char*>(target.base) + row * stride + byte,
                                static_cast<int>(rows), static_cast<int>(row_bytes), stride},
                               kStripRowBytes);
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

}  // namespace tandem::kernels::emulated
