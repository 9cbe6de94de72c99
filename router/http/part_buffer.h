// Parts of an answer on their way from the router to an I/O thread. Room that was read is
// not freed by the reader but waits for the next part, and what it held then goes back to whoever
// adds that: memory is allocated and freed by one thread, for an allocator's other threads' memory
// is the slow kind. Two of these change places, one being filled while the other is read.
//
// Thread safety: none.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

class PartBuffer {
 public:
  struct Item {
    size_t prompt = 0;
    v1::GenerateResponse part;
  };

  size_t size() const { return size_; }
  absl::Span<const Item> items() const { return absl::MakeConstSpan(items_).first(size_); }

  // Takes `part`; what is left in it is of no meaning.
  void Add(size_t prompt, v1::GenerateResponse& part) {
    if (size_ == items_.size()) items_.emplace_back();
    Item& item = items_[size_++];
    item.prompt = prompt;
    item.part.Swap(&part);
  }

  // Empty, but keeps room for some parts and what is in it.
  void Clear() {
    size_ = 0;
    if (items_.size() > kKept) items_ = {};
  }

 private:
  static constexpr size_t kKept = 8;

  // Bound: its owner's.
  std::vector<Item> items_;
  size_t size_ = 0;
};

}  // namespace tandem::router
