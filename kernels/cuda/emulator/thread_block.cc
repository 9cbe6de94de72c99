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

class BlockRunner {
 public:
  BlockRunner(const Grid& grid, uint64_t seed, const GridBody& body, Predecessor* before)
      : grid_(grid), random_(seed), body_(body), before_(before), fibers_(grid.threads) {
    KERNEL_REQUIRE(grid.threads > 0 && grid.threads % 32 == 0 && grid.threads <= 1024);
    shared_ = std::make_unique_for_overwrite<char[]>(grid.shared_bytes + 128);
    async_view_ = std::make_unique_for_overwrite<char[]>(grid.shared_bytes);
    exchange_.resize(static_cast<size_t>(grid.threads / 32) * 2 * 32 * kExchangeBytes);
    for (Fiber& fiber : fibers_) {
      fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    }
  }

  void Run(int x, int y) {
    char* aligned = shared_.get() + (128 - reinterpret_cast<uintptr_t>(shared_.get()) % 128) % 128;
    block_ = {x, y, grid_.x, grid_.threads, aligned, grid_.shared_bytes, async_view_.get()};
    block_.window_address = 1024 + 128 * static_cast<uint32_t>(NextRandom(&random_) % 8);
    block_.elected_lane = static_cast<int>(NextRandom(&random_) % 32);
    std::memset(aligned, kPoison, grid_.shared_bytes);
    std::memset(async_view_.get(), kPoison, grid_.shared_bytes);
    for (int i = 0; i < grid_.threads; ++i) Prepare(i);
    const BlockRunner* outer = std::exchange(running_, this);
    std::vector<int> order(fibers_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    for (size_t done = 0; done < fibers_.size();) done = RunRound(&order);
    running_ = const_cast<BlockRunner*>(outer);
    for (const Fiber& fiber : fibers_) {
      KERNEL_REQUIRE(fiber.thread.copies.empty());
      KERNEL_REQUIRE(fiber.thread.products.empty());
      KERNEL_REQUIRE(fiber.thread.stores.empty());
    }
    // A copy still under way would land in the memory of the next block.
    KERNEL_REQUIRE(landings_.empty());
  }

  static BlockRunner& running() { return *running_; }
  Thread& current() { return fibers_[current_].thread; }
  char* ExchangeAreaOf(int index) {
    const size_t area = static_cast<size_t>(current().index / 32 * 2 + index);
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

  void Arrive(State state) {
    Fiber& self = fibers_[current_];
    self.state = state;
    const size_t all = fibers_.size();
    const size_t size = state == State::kAtWarpBarrier        ? 32
                        : state == State::kAtWarpgroupBarrier ? 128
                                                              : all;
    const size_t first = current_ / size * size;
    const size_t end = first + size;
    KERNEL_REQUIRE(end <= all);
    const auto waits = [state](const Fiber& fiber) { return fiber.state == state; };
    if (std::all_of(fibers_.begin() + first, fibers_.begin() + end, waits)) {
      for (size_t i = first; i < end; ++i) fibers_[i].state = State::kRunnable;
    }
    self.context.SwitchTo(scheduler_);
  }

 private:
  static void Enter() {
    BlockRunner& runner = running();
    runner.body_.run(runner.body_.context);
    Fiber& self = runner.fibers_[runner.current_];
    self.state = State::kDone;
    self.context.SwitchTo(runner.scheduler_);
  }

  void Prepare(int index) {
    Fiber& fiber = fibers_[static_cast<size_t>(index)];
    fiber.context.Prepare(fiber.stack.get(), kStackBytes, &BlockRunner::Enter);
    fiber.thread = Thread();
    fiber.thread.index = index;
    fiber.thread.block = &block_;
    fiber.thread.registers = RegistersAtLaunch(grid_.threads);
    fiber.state = State::kRunnable;
  }

  // Lets every runnable thread run to its next barrier, in a new order; returns how many are done.
  size_t RunRound(std::vector<int>* order) {
    for (size_t i = order->size() - 1; i > 0; --i) {
      std::swap((*order)[i], (*order)[NextRandom(&random_) % (i + 1)]);
    }
    bool moved = false;
    size_t done = 0;
    // Hold some warps back, so that the others advance as far as barriers allow.
    const uint64_t held = NextRandom(&random_) | NextRandom(&random_);
    for (const int index : *order) {
      Fiber& fiber = fibers_[static_cast<size_t>(index)];
      if (fiber.state == State::kRunnable) moved = true;
      if (fiber.state == State::kRunnable && (held >> index / 32 & 1) == 0) {
        current_ = static_cast<size_t>(index);
        scheduler_.SwitchTo(fiber.context);
      }
      done += fiber.state == State::kDone ? 1 : 0;
    }
    if (!moved && !landings_.empty()) {
      std::swap(landings_[NextRandom(&random_) % landings_.size()], landings_.back());
      const std::function<void()> land = std::move(landings_.back());
      landings_.pop_back();
      land();
      return done;
    }
    if (!moved && before_ != nullptr && !before_->has_run()) {
      before_->Finish();
      WakeSleepers(before_);
      return done;
    }
    // If no thread can move, some wait at a barrier that the others never reach.
    KERNEL_REQUIRE(moved);
    return done;
  }

  static thread_local BlockRunner* running_;

  const Grid grid_;
  uint64_t random_;
  const GridBody body_;
  Predecessor* const before_;  // or nullptr
  std::vector<Fiber> fibers_;
  std::unique_ptr<char[]> shared_, async_view_;
  std::vector<std::function<void()>> landings_;
  std::vector<char> exchange_;
  Block block_;
  FiberContext scheduler_;
  size_t current_ = 0;
};

thread_local BlockRunner* BlockRunner::running_ = nullptr;

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

Thread& CurrentThread() { return BlockRunner::running().current(); }
void BlockBarrier() {
  // A block barrier before the fence would let other threads use barriers that bulk copies do not
  // see yet.
  KERNEL_REQUIRE(!CurrentThread().has_unfenced_barriers);
  BlockRunner::running().Arrive(State::kAtBlockBarrier);
}
void WarpBarrier() { BlockRunner::running().Arrive(State::kAtWarpBarrier); }
void WarpgroupBarrier() { BlockRunner::running().Arrive(State::kAtWarpgroupBarrier); }
void SleepOn(const void* key) { BlockRunner::running().Sleep(key); }
void Wake(const void* key) { BlockRunner::running().WakeSleepers(key); }
void AwaitPredecessor() { BlockRunner::running().AwaitPredecessor(); }
void LandLater(std::function<void()> land) { BlockRunner::running().AddLanding(std::move(land)); }
uint64_t DrawNumber() { return BlockRunner::running().Draw(); }
char* ExchangeArea(int index) { return BlockRunner::running().ExchangeAreaOf(index); }

void RunGrid(const Grid& grid, uint64_t seed, const GridBody& body, Predecessor* before) {
  BlockRunner runner(grid, seed, body, before);
  std::vector<std::pair<int, int>> blocks;
  for (int y = 0; y < grid.y; ++y) {
    for (int x = 0; x < grid.x; ++x) blocks.emplace_back(x, y);
  }
  for (size_t i = blocks.size(); i > 1; --i) {
    std::swap(blocks[i - 1], blocks[NextRandom(&seed) % i]);
  }
  for (const auto& [x, y] : blocks) runner.Run(x, y);
  if (before != nullptr) before->Finish();
}

}  // namespace tandem::kernels::emulated
