// Strong types for identity: a BlockId cannot be passed where a LeaseId is expected. An index, a
// count or a size in bytes is a plain integer whose name says which of them it is.
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem {

// An identity of kind `Tag` held as `Rep`. Comparable, hashable (absl::Hash), printable.
template <typename Tag, typename Rep>
class StrongId {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(std::move(value)) {}

  const Rep& value() const { return value_; }

  friend bool operator==(const StrongId& a, const StrongId& b) { return a.value_ == b.value_; }
  friend bool operator!=(const StrongId& a, const StrongId& b) { return a.value_ != b.value_; }
  friend bool operator<(const StrongId& a, const StrongId& b) { return a.value_ < b.value_; }
  template <typename H>
  friend H AbslHashValue(H h, const StrongId& id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& out, const StrongId& id) {
    return out << id.value_;
  }

 private:
  Rep value_{};
};

// A token of the vocabulary: an index into the embedding table.
using TokenId = int32_t;

// A block's place in one instance's pool: [0, num_blocks).
using BlockId = StrongId<struct BlockIdTag, int32_t>;
// A client's request, unique while the request runs. The client chooses it, or the router does.
using RequestId = StrongId<struct RequestIdTag, std::string>;
// A node's name. The operator chooses it, and it stays the same when the node restarts.
using NodeId = StrongId<struct NodeIdTag, std::string>;
// The blocks that one receiver reserved for one sequence. Unique within (node, incarnation).
using LeaseId = StrongId<struct LeaseIdTag, uint64_t>;
// Blocks of one sequence that its node has lent to another. The borrowing node, the debtor, numbers
// its loans; unique within (debtor, incarnation).
using LoanId = StrongId<struct LoanIdTag, uint64_t>;
// One attempt to fill a lease. A newer attempt has a higher epoch; the receiver refuses older ones.
using Epoch = StrongId<struct EpochTag, uint32_t>;
// One run of one process. A process draws a new incarnation at random each time it starts.
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;

}  // namespace tandem
