#include "router/front_end/long_work.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tandem::router {

LongWork::LongWork(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back("long-work", [this] { Run(); });
}

LongWork::~LongWork() {
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  for (Thread& thread : threads_) thread.Join();
}

absl::Status LongWork::Add(size_t bytes, Work work) {
  absl::MutexLock lock(&mutex_);
  const bool fits =
      waiting_.size() < kPiecesMax && bytes <= kBytesMax - std::min(kBytesMax, bytes_);
  if (!fits && bytes_ > 0) {
    return absl::UnavailableError(absl::StrCat(waiting_.size(), " large requests of ", bytes_,
                                               " bytes wait in this router: try again later"));
  }
  bytes_ += bytes;
  waiting_.emplace_back(bytes, std::move(work));
  return absl::OkStatus();
}

void LongWork::Run() {
  for (;;) {
    std::pair<size_t, Work> piece;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &LongWork::Wakes));
      if (closed_) return;
      piece = std::move(waiting_.front());
      waiting_.pop_front();
    }
    piece.second();
    piece.second = nullptr;  // what it holds goes before it is counted as gone
    absl::MutexLock lock(&mutex_);
    bytes_ -= piece.first;
  }
}

}  // namespace tandem::router
