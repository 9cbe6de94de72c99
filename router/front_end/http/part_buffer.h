// Parts of an answer on their way from the router to an I/O thread. Most are text alone: these lie
// one after another in one string. What the others hold goes back, after it was read, to whoever
// adds the next: memory is allocated and freed by one thread, for an allocator's other threads'
// memory is the slow kind. Two of these change places, one being filled while the other is read.
//
// Thread safety: none.
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
    // With is_text: a delta of this sequence, and where its text is.
    int32_t sequence_index = 0;
    size_t text_begin = 0, text_size = 0;
    v1::GenerateResponse part;  // else
  };

  size_t size() const { return size_; }
  absl::Span<const Item> items() const { return absl::MakeConstSpan(items_).first(size_); }
  // REQUIRES: item.is_text, and it is one of items().
  absl::string_view TextOf(const Item& item) const {
    return absl::string_view(texts_).substr(item.text_begin, item.text_size);
  }

  // Takes `part`; what is left in it is of no meaning.
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

  // Empty, but keeps room for some parts and what is in it.
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

  // Bound: its owner's.
  std::vector<Item> items_;
  std::string texts_;
  size_t size_ = 0;
};

}  // namespace tandem::router
