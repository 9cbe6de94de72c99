// One emulated cluster of thread blocks, most often of one block: every GPU thread is a fiber, and
// barriers decide which may run.
//
// Thread safety: a host thread runs one cluster at a time; CurrentThread() is per host thread.
// Owner: RunGrid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/cuda/emulator/product_queue.h"

namespace tandem::kernels::emulated {

// A thread's asynchronous 16-byte copies. They land only when a wait requires it.
class AsyncCopies {
 public:
  void Start(void* shared, const void* global, bool valid) {
    open_.push_back({shared, global, valid});
  }
  void Commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }
  void Wait(size_t pending);
  bool empty() const { return open_.empty() && groups_.empty(); }

 private:
  struct Copy {
    void* shared;
    const void* global;
    bool valid;
  };
  std::vector<Copy> open_;
  std::vector<std::vector<Copy>> groups_;  // oldest first
};

// A thread's bulk copies from shared to device memory. Each reads shared memory, as asynchronous
// units see it, when it starts or at the wait, whichever is drawn, and writes at the wait.
class BulkStores {
 public:
  struct Store {
    const char* from;  // [rows][row_bytes]
    char* to;          // the first byte that is written
    int rows, row_bytes;
    int64_t stride;  // bytes from row to row of `to`
  };
  // REQUIRES: 0 ≤ rows, row_bytes: what lies beyond the target is cut off. `pitch`: bytes from row
  // to row of `from`.
  void Start(const Store& store, int pitch);
  void Commit() {
    groups_.insert(groups_.end(), open_.begin(), open_.end());
    open_.clear();
  }
  void Wait();
  bool empty() const { return open_.empty() && groups_.empty(); }

 private:
  struct Started {
    Store store;
    int pitch;
    std::vector<char> bytes;  // empty: still to be read
  };
  static std::vector<char> Read(const Started& started);
  std::vector<Started> open_, groups_;
};

struct Block {
  int x = 0, y = 0;
  int rank = 0;  // among the blocks of its cluster
  int cluster_blocks = 1;
  int grid_x = 1;
  int num_threads = 0;
  char* shared = nullptr;
  size_t shared_bytes = 0;
  // Shared memory as bulk copies and warpgroup products see it: ordinary stores appear here at the
  // next FenceProxyAsync.
  char* async_view = nullptr;
  // Where shared memory lies in the window that descriptors address: on a multiple of 128 only.
  uint32_t window_address = 0;
  int elected_lane = 0;
  int free_registers = 0;  // given back by threads and not taken since
  int threads_done = 0;

  // Nothing may touch the shared memory of a block whose threads have all ended.
  bool has_ended() const { return threads_done == num_threads; }
};

inline constexpr size_t kExchangeBytes = 32;

struct Thread {
  int index = 0;
  Block* block = nullptr;
  AsyncCopies copies;
  ProductQueue products;
  BulkStores stores;
  bool has_unfenced_barriers = false;
  int registers = 0;
  int next_exchange = 0;  // which of its warp's two exchange areas it uses next
};

// The emulated thread that runs now. REQUIRES: inside RunGrid.
Thread& CurrentThread();
void BlockBarrier();
void WarpBarrier();
void WarpgroupBarrier();
// Of all threads of all blocks of the cluster.
void ClusterBarrier();
// The block of this rank in the running thread's cluster. REQUIRES: there is one, and it has not
// ended.
Block& BlockOfCluster(int rank);
// Suspends the running thread until another one calls Wake with this key.
void SleepOn(const void* key);
void Wake(const void* key);
// Calls `land` once no thread of the cluster can proceed, or only those of a block that is held
// back; several landings run in a random order.
void LandLater(std::function<void()> land);
// The next random number of the cluster, from its seed.
uint64_t DrawNumber();
// Exchange area `index` (0 or 1) of this thread's warp, [32][kExchangeBytes].
char* ExchangeArea(int index);

// Shows one value of each lane to all lanes of the warp. Exchanges use two areas alternately: a
// lane can be at most one exchange ahead of another, so one barrier for each exchange is enough.
template <typename T>
class WarpExchange {
 public:
  explicit WarpExchange(const T& mine) {
    static_assert(sizeof(T) <= kExchangeBytes);
    Thread& thread = CurrentThread();
    area_ = ExchangeArea(thread.next_exchange);
    thread.next_exchange ^= 1;
    std::memcpy(area_ + thread.index % 32 * kExchangeBytes, &mine, sizeof(T));
    WarpBarrier();
  }
  T of(int lane) const {
    T value;
    std::memcpy(&value, area_ + lane * kExchangeBytes, sizeof(T));
    return value;
  }

 private:
  char* area_;
};

// The kernel before a grid in its stream, where it has not run yet: it runs when the grid waits for
// it.
class Predecessor {
 public:
  explicit Predecessor(std::function<void()> run) : run_(std::move(run)) {}
  bool has_run() const { return run_ == nullptr; }
  void Finish() {
    if (!has_run()) std::exchange(run_, nullptr)();
  }

 private:
  std::function<void()> run_;
};
// Suspends the running thread until the grid's predecessor has run. That happens once no thread of
// the cluster can proceed and no bulk copy is under way, so that all that its blocks did before
// they waited saw what was there before.
void AwaitPredecessor();

struct Grid {
  int x = 1, y = 1;
  int threads = 0;  // a multiple of 32
  size_t shared_bytes = 0;
  int cluster = 1;  // blocks of a cluster, neighbours in x; divides x
};
// What the threads of a grid run.
struct GridBody {
  void (*run)(const void* context);
  const void* context;
};
// Runs `body` once for each thread of each block, clusters in an order drawn from `seed`. Blocks of
// a cluster run together, and in some of them one block is held back while the others can go on.
// `before`, if any, has run when it returns.
void RunGrid(const Grid& grid, uint64_t seed, const GridBody& body, Predecessor* before);

}  // namespace tandem::kernels::emulated
