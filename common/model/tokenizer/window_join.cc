#include "common/model/tokenizer/window_join.h"

#include <algorithm>

namespace tandem::model::tokenizer_internal {

bool WindowJoin::Holds(const BpePiece& left, const BpePiece& right) {
  encode_(left.begin, right.end, &pair_);
  return pair_.size() == 2 && pair_[0].id == left.id && pair_[0].end == left.end &&
         pair_[1].id == right.id;
}

bool WindowJoin::MendSeam(const BpePieces& window, size_t count) {
  const size_t kept = pieces_.size() - std::min(count, pieces_.size());
  const size_t taken = std::min(count, window.size());
  encode_(pieces_[kept].begin, window[taken - 1].end, &middle_);
  if (kept > 0 && !Holds(pieces_[kept - 1], middle_.front())) return false;
  if (taken < window.size() && !Holds(middle_.back(), window[taken])) return false;
  pieces_.resize(kept);
  pieces_.insert(pieces_.end(), middle_.begin(), middle_.end());
  pieces_.insert(pieces_.end(), window.begin() + static_cast<ptrdiff_t>(taken), window.end());
  return true;
}

bool WindowJoin::Append(const BpePieces& window) {
  if (pieces_.empty() || Holds(pieces_.back(), window.front())) {
    pieces_.insert(pieces_.end(), window.begin(), window.end());
    return true;
  }
  for (size_t count = 1; count <= kSeamTokensMax; count *= 2) {
    if (MendSeam(window, count)) return true;
  }
  return false;
}

}  // namespace tandem::model::tokenizer_internal
