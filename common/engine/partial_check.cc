#include "common/engine/partial_check.h"

#include "absl/strings/str_cat.h"

namespace tandem::engine {

absl::Status CheckQuery(const PartialQuery& query, const PartialLimits& limits) {
  if (query.layer < 0 || query.layer >= limits.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", query.layer, ", expected one in [0, ", limits.num_layers, ")"));
  }
  if (query.num_rows < 1 || query.first_position < 0 ||
      query.first_position > kPositionsMax - query.num_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat(query.num_rows, " rows from position ", query.first_position,
                     ", expected some before position ", kPositionsMax));
  }
  const UnitSpan& units = query.units;
  if (units.first < 0 || units.end <= units.first ||
      int64_t{units.end} * limits.unit_tokens > query.first_position) {
    return absl::InvalidArgumentError(
        absl::StrCat("units [", units.first, ", ", units.end, "), expected some of ",
                     limits.unit_tokens, " tokens before position ", query.first_position));
  }
  const int64_t blocks = int64_t{units.size()} * limits.unit_tokens / limits.block_tokens;
  if (static_cast<int64_t>(query.blocks.size()) != blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat(query.blocks.size(), " blocks, expected ", blocks));
  }
  for (const BlockId block : query.blocks) {
    if (block.value() < 0 || block.value() >= limits.num_blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("block ", block.value(), ", expected one in [0, ", limits.num_blocks, ")"));
    }
  }
  const int64_t floats = query.num_rows * limits.q_floats;
  if (static_cast<int64_t>(query.q.size()) != floats) {
    return absl::InvalidArgumentError(
        absl::StrCat(query.q.size(), " floats of queries, expected ", floats));
  }
  return absl::OkStatus();
}

absl::Status CheckAnswer(const PartialQuery& query, bool has_window, int64_t room_bytes,
                         int64_t needed_bytes) {
  if (room_bytes != needed_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("room for ", room_bytes, " bytes, expected ", needed_bytes));
  }
  if (has_window) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", query.layer, " has a window: its KV is never lent"));
  }
  return absl::OkStatus();
}

}  // namespace tandem::engine
