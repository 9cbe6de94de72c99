// The working memory of one Encode call: a word cache and buffers. Calls borrow it from a pool, so
// that caches stay warm and no lock is held while encoding.
// Thread safety: the pool may be used from any thread; a borrowed scratch belongs to one call on
// one thread. Owner: TokenizerData has the pool.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/model/tokenizer/bpe_model.h"
#include "common/model/tokenizer/word_cache.h"

namespace tandem::model::tokenizer_internal {

// The most idle scratches in the pool. Further concurrent calls allocate a scratch and free it at
// their end.
inline constexpr size_t kWordCachesMax = 16;
// The pool frees a scratch that a huge text has grown beyond this size.
inline constexpr size_t kScratchBytesMax = size_t{4} << 20;

struct EncodeScratch {
  WordCache cache;
  BpeScratch bpe;
  std::string normalized[2];
  std::deque<std::string> arena;
  std::vector<absl::string_view> words;

  size_t BufferBytes() const {
    return bpe.symbols.capacity() * sizeof(BpeSymbol) + bpe.heap.capacity() * sizeof(uint64_t) +
           normalized[0].capacity() + normalized[1].capacity() +
           words.capacity() * sizeof(absl::string_view);
  }
};

// Thread safety: all methods from any thread.
class EncodeScratchPool {
 public:
  std::unique_ptr<EncodeScratch> Take() {
    {
      absl::MutexLock lock(&mutex_);
      if (!free_.empty()) {
        std::unique_ptr<EncodeScratch> scratch = std::move(free_.back());
        free_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<EncodeScratch>();
  }

  void Return(std::unique_ptr<EncodeScratch> scratch) {
    scratch->arena.clear();
    scratch->words.clear();
    if (scratch->BufferBytes() > kScratchBytesMax) return;
    absl::MutexLock lock(&mutex_);
    if (free_.size() < kWordCachesMax) free_.push_back(std::move(scratch));
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::model::tokenizer_internal
