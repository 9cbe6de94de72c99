// The memory that all HTTP connections together may fill with bytes that wait: requests that have
// not arrived whole or that wait behind another, and answers that their clients have not read. Each
// connection may always hold a little, so that ordinary requests are served while a few clients, or
// many hostile ones, have used up the rest. Thread safety: BufferBudget from any thread; a
// BufferShare belongs to its connection's strand. Owner: the HttpServer; each connection owns its
// share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace tandem::router {

class BufferBudget {
 public:
  // What each connection may hold beside the budget: an ordinary request or answer.
  static constexpr int64_t kFreeBytes = 16 << 10;

  explicit BufferBudget(int64_t bytes_max) : bytes_max_(bytes_max) {}

  int64_t bytes_max() const { return bytes_max_; }
  // Held beyond the free bytes, by all connections.
  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  // Three quarters of it are used: those that hold much must not keep it.
  bool scarce() const { return used() > bytes_max_ - bytes_max_ / 4; }

 private:
  friend class BufferShare;
  const int64_t bytes_max_;
  std::atomic<int64_t> used_{0}, refused_{0};
};

// One connection's part of the budget.
class BufferShare {
 public:
  explicit BufferShare(BufferBudget& budget) : budget_(budget) {}
  ~BufferShare() { Hold(0); }
  BufferShare(const BufferShare&) = delete;
  BufferShare& operator=(const BufferShare&) = delete;

  // The connection holds `bytes` now. False when the budget is used up and the connection needs
  // more of it than before: it then keeps what it had, and must let bytes go or end.
  bool Hold(int64_t bytes) {
    const int64_t charged = std::max<int64_t>(0, bytes - BufferBudget::kFreeBytes);
    const int64_t more = charged - charged_;
    const int64_t used = budget_.used_.fetch_add(more, std::memory_order_relaxed) + more;
    if (more > 0 && used > budget_.bytes_max_) {
      budget_.used_.fetch_sub(more, std::memory_order_relaxed);
      budget_.refused_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    charged_ = charged;
    return true;
  }
  // The connection holds more than the free bytes.
  bool charged() const { return charged_ > 0; }
  bool scarce() const { return budget_.scarce(); }

 private:
  BufferBudget& budget_;
  int64_t charged_ = 0;
};

}  // namespace tandem::router
