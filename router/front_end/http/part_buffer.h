// Holds parts of an answer between the router, which adds them, and an I/O thread, which reads
// them.
//
// Most parts are text alone; their texts lie one after another in a single string. The memory of
// other parts is reused: Add swaps the new part with one that was already read. So the thread that
// allocated a part's memory also frees it, which allocators do fastest. Two buffers are used
// alternately: one is filled while the other is read.
// Thread safety: none. Owner: an ApiAnswer, which guards the buffer that is being filled.
// Invariant: items() are the parts added since Clear, in order.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

class PartBuffer {
 public:
  struct Item {
    size_t prompt = 0;
    bool is_text = false;
    // If is_text: the sequence of the delta, and where its text lies in the buffer's string.
    int32_t sequence_index = 0;
    size_t text_begin = 0, text_size = 0;
    v1::GenerateResponse part;  // if not is_text
  };

  size_t size() const { return size_; }
  absl::Span<const Item> items() const { return absl::MakeConstSpan(items_).first(size_); }
  // REQUIRES: item.is_text, and it is one of items().
  absl::string_view TextOf(const Item& item) const {
    return absl::string_view(texts_).substr(item.text_begin, item.text_size);
  }

  // Takes the contents of `part`, which is unspecified afterwards.
  void Add(size_t prompt, v1::GenerateResponse& part) {
    if (items_.empty()) items_.reserve(kFirstRoom);
    if (size_ == items_.size()) items_.emplace_back();
    Item& item = items_[size_++];
    item.prompt = prompt;
    item.is_text = part.has_delta() && part.delta().tokens().empty();
    if (!item.is_text) {
      item.part.Swap(&part);
      return;
    }
    item.sequence_index = part.delta().sequence_index();
    item.text_begin = texts_.size();
    item.text_size = part.delta().text().size();
    texts_ += part.delta().text();
  }

  // Removes all parts. Keeps the memory of a few for the next ones.
  void Clear() {
    size_ = 0;
    if (items_.size() > kKept) items_ = {};
    texts_.clear();
    if (texts_.capacity() > kKeptBytes) texts_.shrink_to_fit();
  }

 private:
  static constexpr size_t kFirstRoom = 4;
  static constexpr size_t kKept = 8;
  static constexpr size_t kKeptBytes = 256;

  // Bound: ApiAnswer::kPartsMax.
  std::vector<Item> items_;
  std::string texts_;
  size_t size_ = 0;
};

}  // namespace tandem::router
