#include "common/transfer/block_range.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "common/base/check.h"

namespace tandem::transfer {
namespace {

// [first, +count) cut into `parts` pieces whose sizes differ by at most one.
std::vector<std::pair<int32_t, int32_t>> EvenParts(int32_t first, int32_t count, int64_t parts) {
  std::vector<std::pair<int32_t, int32_t>> result;
  for (int64_t i = 0; i < parts; ++i) {
    const int32_t begin = static_cast<int32_t>(count * i / parts);
    const int32_t end = static_cast<int32_t>(count * (i + 1) / parts);
    result.emplace_back(first + begin, end - begin);
  }
  return result;
}

bool CountsAsFilled(CellState state) {
  return state == CellState::kFilled || state == CellState::kAbsent;
}

}  // namespace

std::optional<BlockRange> ToBlockRange(uint32_t first_ordinal, uint32_t ordinal_count,
                                       uint32_t first_layer, uint32_t layer_count) {
  constexpr uint64_t kMax = std::numeric_limits<int32_t>::max();
  if (ordinal_count == 0 || layer_count == 0) return std::nullopt;
  if (uint64_t{first_ordinal} + ordinal_count > kMax) return std::nullopt;
  if (uint64_t{first_layer} + layer_count > kMax) return std::nullopt;
  return BlockRange{.first_ordinal = static_cast<int32_t>(first_ordinal),
                    .ordinal_count = static_cast<int32_t>(ordinal_count),
                    .first_layer = static_cast<int32_t>(first_layer),
                    .layer_count = static_cast<int32_t>(layer_count)};
}

v1::KvRange ToWire(const BlockRange& range) {
  v1::KvRange wire;
  wire.set_first_ordinal(range.first_ordinal);
  wire.set_ordinal_count(range.ordinal_count);
  wire.set_first_layer(range.first_layer);
  wire.set_layer_count(range.layer_count);
  return wire;
}

bool MergeRange(BlockRange& into, const BlockRange& other) {
  if (into.first_ordinal == other.first_ordinal && into.ordinal_count == other.ordinal_count &&
      (into.first_layer + into.layer_count == other.first_layer ||
       other.first_layer + other.layer_count == into.first_layer)) {
    into.first_layer = std::min(into.first_layer, other.first_layer);
    into.layer_count += other.layer_count;
    return true;
  }
  if (into.first_layer == other.first_layer && into.layer_count == other.layer_count &&
      (into.first_ordinal + into.ordinal_count == other.first_ordinal ||
       other.first_ordinal + other.ordinal_count == into.first_ordinal)) {
    into.first_ordinal = std::min(into.first_ordinal, other.first_ordinal);
    into.ordinal_count += other.ordinal_count;
    return true;
  }
  return false;
}

std::vector<BlockRange> SplitRange(const BlockRange& range, int64_t cells_max) {
  TANDEM_CHECK(cells_max > 0 && range.cells() > 0);
  // A row is one layer's cells; as many rows as fit go into one piece, or a row is cut.
  const int64_t rows_max = std::max<int64_t>(1, cells_max / range.ordinal_count);
  const int64_t columns_max = std::min<int64_t>(range.ordinal_count, cells_max);
  const int64_t row_parts = (range.layer_count + rows_max - 1) / rows_max;
  const int64_t column_parts = (range.ordinal_count + columns_max - 1) / columns_max;
  std::vector<BlockRange> parts;
  for (const auto& [layer, layers] : EvenParts(range.first_layer, range.layer_count, row_parts)) {
    for (const auto& [ordinal, ordinals] :
         EvenParts(range.first_ordinal, range.ordinal_count, column_parts)) {
      parts.push_back({.first_ordinal = ordinal,
                       .ordinal_count = ordinals,
                       .first_layer = layer,
                       .layer_count = layers});
    }
  }
  return parts;
}

CellMap::CellMap(int32_t first_ordinal, int32_t ordinal_count, int32_t layer_count)
    : first_ordinal_(first_ordinal),
      ordinal_count_(ordinal_count),
      layer_count_(layer_count),
      cells_(static_cast<size_t>(ordinal_count) * layer_count, CellState::kEmpty) {
  TANDEM_CHECK(ordinal_count > 0 && layer_count > 0);
}

bool CellMap::Contains(const BlockRange& range) const {
  return range.ordinal_count > 0 && range.layer_count > 0 && range.first_layer >= 0 &&
         range.first_ordinal >= first_ordinal_ &&
         int64_t{range.first_ordinal} + range.ordinal_count <=
             int64_t{first_ordinal_} + ordinal_count_ &&
         int64_t{range.first_layer} + range.layer_count <= layer_count_;
}

void CellMap::LeaveOut(absl::Span<const int32_t> layers, int32_t first_ordinal) {
  const int32_t count = std::clamp(first_ordinal - first_ordinal_, 0, ordinal_count_);
  if (count == 0) return;
  for (const int32_t layer : layers) Set({first_ordinal_, count, layer, 1}, CellState::kAbsent);
}

std::vector<BlockRange> CellMap::Present(const BlockRange& range) const {
  std::vector<BlockRange> parts;
  const int32_t end = range.first_ordinal + range.ordinal_count;
  for (int32_t layer = range.first_layer; layer < range.first_layer + range.layer_count; ++layer) {
    int32_t first = range.first_ordinal;
    while (first < end && cells_[Index(layer, first)] == CellState::kAbsent) ++first;
    if (first == end) continue;
    const BlockRange row{first, end - first, layer, 1};
    if (parts.empty() || !MergeRange(parts.back(), row)) parts.push_back(row);
  }
  return parts;
}

bool CellMap::AllAre(const BlockRange& range, CellState state) const {
  for (int32_t layer = range.first_layer; layer < range.first_layer + range.layer_count; ++layer) {
    const auto begin = cells_.begin() + Index(layer, range.first_ordinal);
    if (!std::all_of(begin, begin + range.ordinal_count,
                     [state](CellState cell) { return cell == state; })) {
      return false;
    }
  }
  return true;
}

void CellMap::Set(const BlockRange& range, CellState state) {
  for (int32_t layer = range.first_layer; layer < range.first_layer + range.layer_count; ++layer) {
    const auto begin = cells_.begin() + Index(layer, range.first_ordinal);
    const auto end = begin + range.ordinal_count;
    filled_count_ -= std::count_if(begin, end, CountsAsFilled);
    std::fill(begin, end, state);
    if (CountsAsFilled(state)) filled_count_ += range.ordinal_count;
  }
}

int32_t CellMap::FilledPrefix() const {
  for (int32_t i = 0; i < ordinal_count_; ++i) {
    for (int32_t layer = 0; layer < layer_count_; ++layer) {
      if (!CountsAsFilled(cells_[Index(layer, first_ordinal_ + i)])) return i;
    }
  }
  return ordinal_count_;
}

std::vector<BlockRange> CellMap::FindIn(const BlockRange& range, CellState state) const {
  std::vector<BlockRange> found;
  const int32_t end = range.first_ordinal + range.ordinal_count;
  const auto is_wanted = [&](int32_t layer, int32_t ordinal) {
    return cells_[Index(layer, ordinal)] == state;
  };
  for (int32_t layer = range.first_layer; layer < range.first_layer + range.layer_count; ++layer) {
    for (int32_t i = range.first_ordinal; i < end;) {
      const int32_t begin = i;
      while (i < end && is_wanted(layer, i)) ++i;
      const BlockRange run{begin, i - begin, layer, 1};
      if (i == begin)
        ++i;
      else if (found.empty() || !MergeRange(found.back(), run))
        found.push_back(run);
    }
  }
  return found;
}

std::vector<BlockRange> CellMap::Find(CellState state, size_t ranges_max) const {
  std::vector<BlockRange> found;
  // Runs of the layer above, by (first ordinal, count): a run that repeats grows its rectangle.
  std::map<std::pair<int32_t, int32_t>, size_t> above;
  for (int32_t layer = 0; layer < layer_count_; ++layer) {
    std::map<std::pair<int32_t, int32_t>, size_t> here;
    for (int32_t i = 0; i < ordinal_count_;) {
      const int32_t begin = i;
      while (i < ordinal_count_ && cells_[Index(layer, first_ordinal_ + i)] == state) ++i;
      if (i == begin) {
        ++i;
        continue;
      }
      const std::pair<int32_t, int32_t> run(first_ordinal_ + begin, i - begin);
      if (const auto it = above.find(run); it != above.end()) {
        ++found[it->second].layer_count;
        here[run] = it->second;
      } else if (found.size() < ranges_max) {
        here[run] = found.size();
        found.push_back({.first_ordinal = run.first,
                         .ordinal_count = run.second,
                         .first_layer = layer,
                         .layer_count = 1});
      }
    }
    above = std::move(here);
  }
  return found;
}

}  // namespace tandem::transfer
