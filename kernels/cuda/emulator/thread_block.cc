#include "kernels/cuda/emulator/thread_block.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/api/require.h"
#include "kernels/cuda/emulator/fiber.h"

namespace tandem::kernels::emulated {
namespace {

// Deep enough for kernels' register arrays, which live on the stack here, with a sanitizer's
// redzones.
constexpr size_t kStackBytes = 256 << 10;
// The byte that fills memory before its first write: NaN as fp32 and as two bf16.
constexpr int kPoison = 0xff;

enum class State {
  kRunnable,
  kAtWarpBarrier,
  kAtWarpgroupBarrier,
  kAtBlockBarrier,
  kAtClusterBarrier,
  kAsleep,
  kDone
};

struct Fiber {
  FiberContext context;
  std::unique_ptr<char[]> stack;
  Thread thread;
  State state = State::kDone;
  const void* sleeps_on = nullptr;
};

// splitmix64: orders threads and blocks.
uint64_t NextRandom(uint64_t* state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// A thread's registers at launch, where its block has a multiprocessor for itself.
int RegistersAtLaunch(int threads) { return std::min(65536 / threads / 8 * 8, 248); }

// What a block has of its own.
struct BlockMemory {
  std::unique_ptr<char[]> shared, async_view;
  Block block;
};

class ClusterRunner {
 public:
  ClusterRunner(const Grid& grid, uint64_t seed, const GridBody& body, Predecessor* before)
      : grid_(grid),
        random_(seed),
        body_(body),
        before_(before),
        fibers_(static_cast<size_t>(grid.threads * grid.cluster)),
        blocks_(static_cast<size_t>(grid.cluster)) {
    KERNEL_REQUIRE(grid.threads > 0 && grid.threads % 32 == 0 && grid.threads <= 1024);
    KERNEL_REQUIRE(grid.cluster >= 1 && grid.cluster <= 8 && grid.x % grid.cluster == 0);
    for (BlockMemory& memory : blocks_) {
      memory.shared = std::make_unique_for_overwrite<char[]>(grid.shared_bytes + 128);
      memory.async_view = std::make_unique_for_overwrite<char[]>(grid.shared_bytes);
    }
    exchange_.resize(fibers_.size() / 32 * 2 * 32 * kExchangeBytes);
    for (Fiber& fiber : fibers_) {
      fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    }
  }

  // Runs the cluster whose first block is (x, y).
  void Run(int x, int y) {
    // Shared memory begins at the same address in all blocks of a cluster.
    const uint32_t window_address = 1024 + 128 * static_cast<uint32_t>(NextRandom(&random_) % 8);
    for (int rank = 0; rank < grid_.cluster; ++rank) {
      PrepareBlock(rank, x + rank, y);
      blocks_[static_cast<size_t>(rank)].block.window_address = window_address;
    }
    for (size_t i = 0; i < fibers_.size(); ++i) PrepareThread(i);
    slow_block_ = -1;
    if (grid_.cluster > 1) DrawSlowBlock();
    const ClusterRunner* outer = std::exchange(running_, this);
    std::vector<int> order(fibers_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    for (size_t done = 0; done < fibers_.size();) done = RunRound(&order);
    running_ = const_cast<ClusterRunner*>(outer);
    for (const Fiber& fiber : fibers_) {
      KERNEL_REQUIRE(fiber.thread.copies.empty());
      KERNEL_REQUIRE(fiber.thread.products.empty());
      KERNEL_REQUIRE(fiber.thread.stores.empty());
    }
    // A copy still under way would land in the memory of the next block.
    KERNEL_REQUIRE(landings_.empty());
  }

  static ClusterRunner& running() { return *running_; }
  Thread& current() { return fibers_[current_].thread; }
  char* ExchangeAreaOf(int index) {
    const size_t area = current_ / 32 * 2 + static_cast<size_t>(index);
    return exchange_.data() + area * 32 * kExchangeBytes;
  }

  void Sleep(const void* key) {
    Fiber& self = fibers_[current_];
    self.state = State::kAsleep;
    self.sleeps_on = key;
    self.context.SwitchTo(scheduler_);
  }
  void WakeSleepers(const void* key) {
    for (Fiber& fiber : fibers_) {
      if (fiber.state == State::kAsleep && fiber.sleeps_on == key) fiber.state = State::kRunnable;
    }
  }
  void AwaitPredecessor() {
    if (before_ == nullptr) return;
    // What these read, before or after, would be unknown.
    KERNEL_REQUIRE(current().copies.empty());
    while (!before_->has_run()) Sleep(before_);
  }
  void AddLanding(std::function<void()> land) { landings_.push_back(std::move(land)); }
  uint64_t Draw() { return NextRandom(&random_); }

  Block& BlockOf(int rank) {
    KERNEL_REQUIRE(rank >= 0 && rank < grid_.cluster);
    Block& block = blocks_[static_cast<size_t>(rank)].block;
    KERNEL_REQUIRE(!block.has_ended());
    return block;
  }

  void Arrive(State state) {
    Fiber& self = fibers_[current_];
    self.state = state;
    const size_t in_block = static_cast<size_t>(grid_.threads);
    const bool of_cluster = state == State::kAtClusterBarrier;
    const size_t all = of_cluster ? fibers_.size() : in_block;
    const size_t base = of_cluster ? 0 : current_ / in_block * in_block;
    const size_t size = state == State::kAtWarpBarrier        ? 32
                        : state == State::kAtWarpgroupBarrier ? 128
                                                              : all;
    const size_t first = base + (current_ - base) / size * size;
    const size_t end = first + size;
    KERNEL_REQUIRE(end <= base + all);
    const auto waits = [state](const Fiber& fiber) { return fiber.state == state; };
    if (std::all_of(fibers_.begin() + first, fibers_.begin() + end, waits)) {
      for (size_t i = first; i < end; ++i) fibers_[i].state = State::kRunnable;
    }
    self.context.SwitchTo(scheduler_);
  }

 private:
  static void Enter() {
    ClusterRunner& runner = running();
    runner.body_.run(runner.body_.context);
    Fiber& self = runner.fibers_[runner.current_];
    self.state = State::kDone;
    ++self.thread.block->threads_done;
    self.context.SwitchTo(runner.scheduler_);
  }

  void PrepareBlock(int rank, int x, int y) {
    BlockMemory& memory = blocks_[static_cast<size_t>(rank)];
    char* shared = memory.shared.get();
    char* aligned = shared + (128 - reinterpret_cast<uintptr_t>(shared) % 128) % 128;
    Block& block = memory.block;
    block = {x, y, rank, grid_.cluster, grid_.x, grid_.threads, aligned, grid_.shared_bytes};
    block.async_view = memory.async_view.get();
    block.elected_lane = static_cast<int>(NextRandom(&random_) % 32);
    std::memset(aligned, kPoison, grid_.shared_bytes);
    std::memset(block.async_view, kPoison, grid_.shared_bytes);
  }
  void PrepareThread(size_t index) {
    const size_t in_block = static_cast<size_t>(grid_.threads);
    Fiber& fiber = fibers_[index];
    fiber.context.Prepare(fiber.stack.get(), kStackBytes, &ClusterRunner::Enter);
    fiber.thread = Thread();
    fiber.thread.index = static_cast<int>(index % in_block);
    fiber.thread.block = &blocks_[index / in_block].block;
    fiber.thread.registers = RegistersAtLaunch(grid_.threads);
    fiber.state = State::kRunnable;
  }

  bool CanMove(const Fiber& fiber) const {
    return fiber.state == State::kRunnable && fiber.thread.block->rank != slow_block_;
  }
  // Which block of a cluster is held back from now on, or none.
  void DrawSlowBlock() {
    slow_block_ =
        static_cast<int>(NextRandom(&random_) % static_cast<uint64_t>(grid_.cluster + 1)) - 1;
  }
  void LandOne() {
    std::swap(landings_[NextRandom(&random_) % landings_.size()], landings_.back());
    const std::function<void()> land = std::move(landings_.back());
    landings_.pop_back();
    land();
  }

  // Lets every thread that can move run to its next barrier, in a new order; returns how many are
  // done.
  size_t RunRound(std::vector<int>* order) {
    for (size_t i = order->size() - 1; i > 0; --i) {
      std::swap((*order)[i], (*order)[NextRandom(&random_) % (i + 1)]);
    }
    if (grid_.cluster > 1 && NextRandom(&random_) % 16 == 0) DrawSlowBlock();
    const auto can_move = [this](const Fiber& fiber) { return CanMove(fiber); };
    if (slow_block_ >= 0 && std::none_of(fibers_.begin(), fibers_.end(), can_move)) {
      // The others wait: for copies of their own, or for the block that is held back.
      if (!landings_.empty() && NextRandom(&random_) % 2 == 0) {
        LandOne();
        return CountDone();
      }
      slow_block_ = -1;
    }
    bool moved = false;
    // Hold some warps back, so that the others advance as far as barriers allow.
    const uint64_t held = NextRandom(&random_) | NextRandom(&random_);
    for (const int index : *order) {
      Fiber& fiber = fibers_[static_cast<size_t>(index)];
      if (!CanMove(fiber)) continue;
      moved = true;
      if ((held >> index / 32 % 64 & 1) != 0) continue;
      current_ = static_cast<size_t>(index);
      scheduler_.SwitchTo(fiber.context);
    }
    if (!moved && !landings_.empty()) {
      LandOne();
      return CountDone();
    }
    if (!moved && before_ != nullptr && !before_->has_run()) {
      before_->Finish();
      WakeSleepers(before_);
      return CountDone();
    }
    // If no thread can move, some wait at a barrier that the others never reach.
    KERNEL_REQUIRE(moved);
    return CountDone();
  }
  size_t CountDone() const {
    size_t done = 0;
    for (const BlockMemory& memory : blocks_)
      done += static_cast<size_t>(memory.block.threads_done);
    return done;
  }

  static thread_local ClusterRunner* running_;

  const Grid grid_;
  uint64_t random_;
  const GridBody body_;
  Predecessor* const before_;  // or nullptr
  std::vector<Fiber> fibers_;
  std::vector<BlockMemory> blocks_;  // of the cluster
  std::vector<std::function<void()>> landings_;
  std::vector<char> exchange_;
  FiberContext scheduler_;
  size_t current_ = 0;
  int slow_block_ = -1;  // held back while others can move; -1: none
};

thread_local ClusterRunner* ClusterRunner::running_ = nullptr;

}  // namespace

void AsyncCopies::Wait(size_t pending) {
  while (groups_.size() > pending) {
    for (const Copy& copy : groups_.front()) {
      if (copy.valid) {
        std::memcpy(copy.shared, copy.global, 16);
      } else {
        std::memset(copy.shared, 0, 16);
      }
    }
    groups_.erase(groups_.begin());
  }
}

std::vector<char> BulkStores::Read(const Started& started) {
  const Store& store = started.store;
  std::vector<char> bytes;
  for (int r = 0; r < store.rows; ++r) {
    const char* row = store.from + r * started.pitch;
    bytes.insert(bytes.end(), row, row + store.row_bytes);
  }
  return bytes;
}
void BulkStores::Start(const Store& store, int pitch) {
  Started started = {store, pitch, {}};
  if (DrawNumber() % 2 == 0) started.bytes = Read(started);
  open_.push_back(std::move(started));
}
void BulkStores::Wait() {
  for (Started& started : groups_) {
    const Store& store = started.store;
    if (started.bytes.empty()) started.bytes = Read(started);
    for (int r = 0; r < store.rows; ++r) {
      std::memcpy(store.to + r * store.stride, started.bytes.data() + r * store.row_bytes,
                  static_cast<size_t>(store.row_bytes));
    }
  }
  groups_.clear();
}

Thread& CurrentThread() { return ClusterRunner::running().current(); }
void BlockBarrier() {
  // A block barrier before the fence would let other threads use barriers that bulk copies do not
  // see yet.
  KERNEL_REQUIRE(!CurrentThread().has_unfenced_barriers);
  ClusterRunner::running().Arrive(State::kAtBlockBarrier);
}
void WarpBarrier() { ClusterRunner::running().Arrive(State::kAtWarpBarrier); }
void WarpgroupBarrier() { ClusterRunner::running().Arrive(State::kAtWarpgroupBarrier); }
void ClusterBarrier() {
  KERNEL_REQUIRE(!CurrentThread().has_unfenced_barriers);
  ClusterRunner::running().Arrive(State::kAtClusterBarrier);
}
Block& BlockOfCluster(int rank) { return ClusterRunner::running().BlockOf(rank); }
void SleepOn(const void* key) { ClusterRunner::running().Sleep(key); }
void Wake(const void* key) { ClusterRunner::running().WakeSleepers(key); }
void AwaitPredecessor() { ClusterRunner::running().AwaitPredecessor(); }
void LandLater(std::function<void()> land) { ClusterRunner::running().AddLanding(std::move(land)); }
uint64_t DrawNumber() { return ClusterRunner::running().Draw(); }
char* ExchangeArea(int index) { return ClusterRunner::running().ExchangeAreaOf(index); }

void RunGrid(const Grid& grid, uint64_t seed, const GridBody& body, Predecessor* before) {
  ClusterRunner runner(grid, seed, body, before);
  std::vector<std::pair<int, int>> clusters;  // their first blocks
  for (int y = 0; y < grid.y; ++y) {
    for (int x = 0; x < grid.x; x += grid.cluster) clusters.emplace_back(x, y);
  }
  for (size_t i = clusters.size(); i > 1; --i) {
    std::swap(clusters[i - 1], clusters[NextRandom(&seed) % i]);
  }
  for (const auto& [x, y] : clusters) runner.Run(x, y);
  if (before != nullptr) before->Finish();
}

}  // namespace tandem::kernels::emulated
