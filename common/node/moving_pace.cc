#include "common/node/moving_pace.h"

#include <algorithm>

namespace tandem::node {
namespace {

// The blocks a step that send `unsent` of them before the sequences have taken what is available.
int64_t BlocksToStayAhead(const MovingPace::Room& room) {
  if (room.available <= room.sequences) return MovingPace::kBlocksMax;
  const int64_t steps = room.available * room.block_tokens / std::max<int64_t>(1, room.sequences);
  return (room.unsent + steps - 1) / steps;
}

}  // namespace

void MovingPace::Observe(int64_t bytes, absl::Duration time) {
  if (bytes > 0 && time > absl::ZeroDuration())
    rate_.Observe(bytes, absl::ToDoubleMicroseconds(time));
}

double MovingPace::BlockUs(int64_t block_bytes) const {
  const double us = rate_.PredictUs(block_bytes);
  return us > 0 ? us : static_cast<double>(block_bytes) / kFirstBytesPerUs;
}

int32_t MovingPace::BlocksBeforeStep(double step_us, int64_t block_bytes, const Room& room) const {
  if (step_us <= 0) return kBlocksMax;
  const double affordable =
      std::min<double>(kBlocksMax, kStepShareMax * step_us / std::max(1e-3, BlockUs(block_bytes)));
  const int64_t blocks = std::max(static_cast<int64_t>(affordable), BlocksToStayAhead(room));
  return static_cast<int32_t>(std::clamp<int64_t>(blocks, 1, kBlocksMax));
}

}  // namespace tandem::node
