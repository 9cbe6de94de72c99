#include "common/transfer/message_link.h"

#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tandem::transfer {
namespace {

constexpr size_t kRecordBytes = 16;  // what a message takes beyond its bytes, padding included

// One direction. Its bytes are counted as in a ring, so that an in-process link is full when a
// shared one would be.
struct Direction {
  // Bound: LinkLimits::ring_bytes.
  std::deque<std::vector<std::byte>> messages;
  size_t bytes = 0;
};

struct Pair {
  Direction directions[2];
  bool closed = false;
};

class InProcessLink : public MessageLink {
 public:
  // The pair is shared because either end may go first.
  InProcessLink(std::shared_ptr<Pair> pair, int side, const LinkLimits& limits,
                const InProcessFaults& faults)
      : pair_(std::move(pair)), side_(side), limits_(limits), faults_(faults) {}
  ~InProcessLink() override { pair_->closed = true; }

  absl::Status Send(MessagePieces message) override {
    const size_t bytes = MessageBytes(message);
    if (bytes == 0 || bytes > limits_.message_bytes_max) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a message of ", bytes, " bytes, expected 1 to ", limits_.message_bytes_max));
    }
    if (faults_.broken || pair_->closed) return CheckPeer();
    Direction& direction = pair_->directions[side_];
    if (direction.bytes + bytes + kRecordBytes > limits_.ring_bytes) {
      return absl::ResourceExhaustedError("the link is full");
    }
    std::vector<std::byte>& copy = direction.messages.emplace_back();
    copy.reserve(bytes);
    for (const auto piece : message) copy.insert(copy.end(), piece.begin(), piece.end());
    direction.bytes += bytes + kRecordBytes;
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<absl::Span<const std::byte>>> Receive() override {
    if (faults_.broken) return CheckPeer();
    Direction& direction = pair_->directions[1 - side_];
    if (faults_.hold || direction.messages.empty()) {
      return std::optional<absl::Span<const std::byte>>();
    }
    received_ = std::move(direction.messages.front());
    direction.messages.pop_front();
    direction.bytes -= received_.size() + kRecordBytes;
    return std::optional(absl::MakeConstSpan(received_));
  }

  bool PrepareSleep() override {
    return faults_.hold || pair_->directions[1 - side_].messages.empty();
  }
  void EndSleep() override {}
  absl::Status CheckPeer() override {
    if (faults_.broken || pair_->closed) return absl::UnavailableError("the other end has closed");
    return absl::OkStatus();
  }
  int descriptor() const override { return -1; }

 private:
  const std::shared_ptr<Pair> pair_;
  const int side_;
  const LinkLimits limits_;
  const InProcessFaults& faults_;
  // Bound: LinkLimits::message_bytes_max.
  std::vector<std::byte> received_;
};

}  // namespace

absl::Status CheckLimits(const LinkLimits& limits) {
  const bool is_power =
      limits.ring_bytes != 0 && (limits.ring_bytes & (limits.ring_bytes - 1)) == 0;
  if (!is_power || limits.message_bytes_max == 0 ||
      limits.message_bytes_max > limits.ring_bytes / 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a ring of ", limits.ring_bytes, " bytes for messages of up to ", limits.message_bytes_max,
        ", expected a power of two of at least twice the longest message"));
  }
  return absl::OkStatus();
}

size_t MessageBytes(MessagePieces pieces) {
  size_t bytes = 0;
  for (const auto piece : pieces) bytes += piece.size();
  return bytes;
}

std::pair<std::unique_ptr<MessageLink>, std::unique_ptr<MessageLink>> NewInProcessLinks(
    const LinkLimits& limits, const InProcessFaults& faults) {
  const auto pair = std::make_shared<Pair>();
  return {std::make_unique<InProcessLink>(pair, 0, limits, faults),
          std::make_unique<InProcessLink>(pair, 1, limits, faults)};
}

}  // namespace tandem::transfer
