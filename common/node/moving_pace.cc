#include "common/node/moving_pace.h"

#include <algorithm>
#include <cmath>

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
  const int64_t blocks =
      std::max({static_cast<int64_t>(affordable), BlocksToStayAhead(room), room.due});
  return static_cast<int32_t>(std::clamp<int64_t>(blocks, 1, kBlocksMax));
}

bool MovingPace::SendsWithin(absl::Duration time, double step_us, int64_t block_bytes,
                             const Room& room) const {
  if (step_us <= 0) return true;
  const double steps = std::max(1.0, std::floor(absl::ToDoubleMicroseconds(time) / step_us));
  return BlocksBeforeStep(step_us, block_bytes, room) * steps >= static_cast<double>(room.unsent);
}

int64_t MovingPace::BlocksToFinish(int64_t unsent, absl::Duration left, double step_us) {
  if (step_us <= 0) return 0;
  const double steps = std::max(1.0, std::floor(absl::ToDoubleMicroseconds(left) / step_us));
  return static_cast<int64_t>(std::ceil(static_cast<double>(unsent) / steps));
}

}  // namespace tandem::node
