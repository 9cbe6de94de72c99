// Rectangles of a sequence's KV: blocks (by ordinal) × layers, and the state of each cell (one
// block of one layer) of a lease or an export. Thread safety: values; one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "tandem/v1/kv.pb.h"

namespace tandem::transfer {

struct BlockRange {
  int32_t first_ordinal = 0, ordinal_count = 0;
  int32_t first_layer = 0, layer_count = 0;

  int64_t cells() const { return int64_t{ordinal_count} * layer_count; }
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

// nullopt for empty ranges and values that do not fit: wire values are 32 bits unsigned.
std::optional<BlockRange> ToBlockRange(uint32_t first_ordinal, uint32_t ordinal_count,
                                       uint32_t first_layer, uint32_t layer_count);
v1::KvRange ToWire(const BlockRange& range);

// Grows `into` by `other` when the two together form a rectangle; says whether they do.
bool MergeRange(BlockRange& into, const BlockRange& other);

// Cuts `range` into rectangles of nearly equal size, of one to `cells_max` cells: along layers
// where one layer's row fits, else along ordinals too. REQUIRES: cells_max > 0, range not empty.
std::vector<BlockRange> SplitRange(const BlockRange& range, int64_t cells_max);

// kAbsent: not part of the transfer; counts as filled.
enum class CellState : uint8_t { kEmpty, kInFlight, kFilled, kAbsent };

// The cells of ordinals [first_ordinal, +ordinal_count) × layers [0, layer_count).
class CellMap {
 public:
  // REQUIRES: counts positive.
  CellMap(int32_t first_ordinal, int32_t ordinal_count, int32_t layer_count);

  // The cells of `layers` in ordinals before `first_ordinal` are absent: of layers with a window,
  // what the receiver does not read. REQUIRES: nothing was set yet; layers are in range.
  void LeaveOut(absl::Span<const int32_t> layers, int32_t first_ordinal);

  bool Contains(const BlockRange& range) const;
  // REQUIRES for all below: Contains(range).
  // The range without absent cells, as rectangles; the range itself where there are none.
  std::vector<BlockRange> Present(const BlockRange& range) const;
  bool AllAre(const BlockRange& range, CellState state) const;
  void Set(const BlockRange& range, CellState state);

  int64_t filled_count() const { return filled_count_; }
  bool AllFilled() const { return filled_count_ == static_cast<int64_t>(cells_.size()); }
  // Ordinals from the first on whose cells are filled in all layers.
  int32_t FilledPrefix() const;
  // The cells in `state` as rectangles, at most `ranges_max` of them, lower layers first.
  std::vector<BlockRange> Find(CellState state, size_t ranges_max) const;
  // Those of `range`, likewise. REQUIRES: Contains(range).
  std::vector<BlockRange> FindIn(const BlockRange& range, CellState state) const;

 private:
  size_t Index(int32_t layer, int32_t ordinal) const {
    return static_cast<size_t>(layer) * ordinal_count_ + (ordinal - first_ordinal_);
  }
  const int32_t first_ordinal_, ordinal_count_, layer_count_;
  // Bound: blocks × layers of one lease, fixed.
  std::vector<CellState> cells_;  // [layer_count][ordinal_count]
  int64_t filled_count_ = 0;
};

}  // namespace tandem::transfer
