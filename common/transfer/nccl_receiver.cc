#include "common/transfer/nccl_receiver.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/telemetry/log.h"

namespace tandem::transfer {
namespace {

void Scatter(absl::Span<const std::byte> from, const ScatterList& to) {
  for (const absl::Span<std::byte> piece : to) {
    TANDEM_CHECK(piece.size() <= from.size(), "the place is larger than the payload");
    std::memcpy(piece.data(), from.data(), piece.size());
    from.remove_prefix(piece.size());
  }
  TANDEM_CHECK(from.empty(), "the place is smaller than the payload");
}

}  // namespace

NcclReceiver::NcclReceiver(NcclContext& context, PeerId peer, const v1::KvChannel& offer)
    : context_(context),
      peer_(peer),
      number_(offer.number()),
      stands_since_(context.now()),
      landings_(static_cast<size_t>(context.channels->slots())) {
  auto channel = context_.channels->Open(offer.id(), kernels::PairChannels::Side::kReceiver);
  if (channel.ok()) {
    channel_ = *std::move(channel);
  } else {
    End(channel.status(), /*tell=*/true);
  }
}

bool NcclReceiver::busy() const {
  if (channel_ == nullptr) return false;
  for (const std::optional<Landing>& landing : landings_) {
    if (landing.has_value()) return true;
  }
  return !open_ || !headers_.empty();
}

void NcclReceiver::OnHeader(const v1::KvFrame& frame) {
  const v1::KvViaChannel& via = frame.via_channel();
  if (channel_ == nullptr || via.ordinal() < next_ordinal_) return;  // a repeat
  if (!open_ || via.ordinal() >= next_ordinal_ + 2 * kChannelWindow || via.bytes() == 0 ||
      via.bytes() > context_.channels->slot_bytes()) {
    End(absl::InvalidArgumentError(absl::StrCat("payload ", via.ordinal(), " of ", via.bytes(),
                                                " bytes is not one that the channel can carry")),
        /*tell=*/true);
    return;
  }
  if (headers_.empty()) stands_since_ = context_.now();
  headers_.emplace(via.ordinal(), frame);
  StartNext();
}

bool NcclReceiver::Progress() {
  if (channel_ == nullptr) return false;
  const kernels::PairChannel::State state = channel_->Progress();
  if (state == kernels::PairChannel::State::kFailed) {
    End(channel_->status(), /*tell=*/true);
    return true;
  }
  const absl::Time now = context_.now();
  if (!open_) {
    if (state == kernels::PairChannel::State::kOpen) {
      open_ = true;
      context_.SendChannelFrame(peer_, number_, v1::KvChannel::READY, /*from_receiver=*/true);
    } else if (now > stands_since_ + context_.options.open_within) {
      End(absl::DeadlineExceededError(
              absl::StrCat("the channel did not open within ",
                           absl::FormatDuration(context_.options.open_within))),
          /*tell=*/true);
    }
    return open_;
  }
  bool moved = FinishLanded();
  if (channel_ == nullptr) return true;  // ended by the listener
  moved = StartNext() || moved;
  if (channel_ == nullptr) return true;
  if (moved || !busy()) {
    stands_since_ = now;
  } else if (now > stands_since_ + context_.options.move_within) {
    End(absl::DeadlineExceededError(
            absl::StrCat("a payload or its header did not arrive within ",
                         absl::FormatDuration(context_.options.move_within))),
        /*tell=*/true);
    return true;
  }
  return moved;
}

bool NcclReceiver::StartNext() {
  bool moved = false;
  for (auto next = headers_.begin(); next != headers_.end() && next->first == next_ordinal_;
       next = headers_.begin()) {
    const size_t slot = static_cast<size_t>(next_ordinal_ % landings_.size());
    if (landings_[slot].has_value()) break;
    v1::KvFrame frame = std::move(next->second);
    headers_.erase(next);
    ++next_ordinal_;
    Landing landing;
    landing.bytes = frame.via_channel().bytes();
    landing.receive_id = context_.next_receive++;
    landing.began = context_.now();
    frame.clear_via_channel();
    channel_->Start(static_cast<int>(slot), landing.bytes);
    if (context_.listener != nullptr) {
      landing.place = context_.listener->OnFrame(peer_, frame, landing.bytes, landing.receive_id);
    }
    if (channel_ == nullptr) {
      // The listener ended the connection: nothing will land in its place.
      if (landing.place.has_value()) {
        context_.listener->OnPayload(landing.receive_id, absl::CancelledError("the channel ended"),
                                     {.began = landing.began, .landed = landing.began});
      }
      return true;
    }
    landings_[slot] = std::move(landing);
    moved = true;
  }
  return moved;
}

// In the order of their ordinals, which is the order of the slots from the oldest on.
bool NcclReceiver::FinishLanded() {
  bool moved = false;
  while (consumed_ < next_ordinal_) {
    const size_t slot = static_cast<size_t>(consumed_ % landings_.size());
    if (!landings_[slot].has_value() || !channel_->idle(static_cast<int>(slot))) break;
    const Landing landing = *std::exchange(landings_[slot], std::nullopt);
    ++consumed_;
    moved = true;
    if (!landing.place.has_value()) continue;
    const absl::Span<const std::byte> landed =
        channel_->slot(static_cast<int>(slot)).first(landing.bytes);
    absl::Status status;
    if (context_.options.device != nullptr) {
      status = context_.options.device->EmptyDevice(landed.data(), *landing.place);
    } else {
      Scatter(landed, *landing.place);
    }
    context_.listener->OnPayload(landing.receive_id, status,
                                 {.began = landing.began, .landed = context_.now()});
    if (channel_ == nullptr) return true;
  }
  if (consumed_ >= announced_ + kChannelWindow / 2) {
    announced_ = consumed_;
    context_.SendChannelFrame(peer_, number_, v1::KvChannel::CONSUMED, /*from_receiver=*/true, "",
                              consumed_);
  }
  return moved;
}

void NcclReceiver::End(absl::Status status, bool tell) {
  channel_.reset();
  headers_.clear();
  if (tell) {
    Log(LogLevel::kWarning, "a KV channel from a peer failed",
        {{"kind", context_.channels->name()},
         {"peer", peer_.value()},
         {"reason", status.message()}});
    context_.SendChannelFrame(peer_, number_, v1::KvChannel::CLOSED, /*from_receiver=*/true);
  }
  for (std::optional<Landing>& slot : landings_) {
    if (!slot.has_value()) continue;
    const Landing landing = *std::exchange(slot, std::nullopt);
    if (!landing.place.has_value()) continue;
    context_.listener->OnPayload(landing.receive_id, status,
                                 {.began = landing.began, .landed = context_.now()});
  }
}

}  // namespace tandem::transfer
