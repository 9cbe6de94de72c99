// Strong types for identity. Two ids of different kinds never mix; an index, a count or a byte size
// is a plain integer named as such.
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
  StrongId() = default;
  explicit StrongId(Rep value) : value_(std::move(value)) {}

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
// A client's request, unique for its lifetime; chosen by the client or the router.
using RequestId = StrongId<struct RequestIdTag, std::string>;
// A node's stable name, chosen by the operator.
using NodeId = StrongId<struct NodeIdTag, std::string>;
// Space that one receiver set aside for one sequence. Unique within (node, incarnation).
using LeaseId = StrongId<struct LeaseIdTag, uint64_t>;
// An attempt to fill a lease. A newer attempt has a higher epoch; older ones are refused.
using Epoch = StrongId<struct EpochTag, uint32_t>;
// One start of one process; a restart draws another.
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;

}  // namespace tandem
