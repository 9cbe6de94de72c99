#include "common/transfer/nccl_sender.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"

namespace tandem::transfer {

NcclSender::NcclSender(NcclContext& context, PeerId peer)
    : context_(context),
      peer_(peer),
      number_(context.next_number++),
      offered_(context.now()),
      in_flight_(static_cast<size_t>(context.channels->slots())) {
  if (const absl::Status status = Offer(); !status.ok()) Fail(status);
}

absl::Status NcclSender::Offer() {
  ASSIGN_OR_RETURN(std::string id, context_.channels->NewId());
  ASSIGN_OR_RETURN(channel_, context_.channels->Open(id, kernels::PairChannels::Side::kSender));
  context_.SendChannelFrame(peer_, number_, v1::KvChannel::OFFER, /*from_receiver=*/false,
                            std::move(id));
  return absl::OkStatus();
}

bool NcclSender::busy() const {
  if (channel_ == nullptr) return false;
  for (const std::optional<Payload>& payload : in_flight_) {
    if (payload.has_value()) return true;
  }
  return !open_ || !waiting_.empty();
}

void NcclSender::Send(const v1::KvFrame& frame, GatherList payload, Done done) {
  waiting_.push_back({frame, std::move(payload), std::move(done), absl::InfiniteFuture()});
  Pump();
}

void NcclSender::OnFrame(const v1::KvChannel& frame) {
  if (frame.number() != number_ || channel_ == nullptr) return;
  switch (frame.kind()) {
    case v1::KvChannel::READY:
      peer_ready_ = true;
      return;
    case v1::KvChannel::CONSUMED:
      if (frame.consumed() > next_ordinal_) {
        return Fail(absl::DataLossError("the peer reports more payloads taken than were sent"));
      }
      consumed_ = std::max(consumed_, frame.consumed());  // they may come out of order
      return;
    default:
      return Fail(absl::UnavailableError("the peer closed the channel"));
  }
}

bool NcclSender::Progress() {
  if (channel_ == nullptr) return false;
  const kernels::PairChannel::State state = channel_->Progress();
  if (state == kernels::PairChannel::State::kFailed) {
    Fail(channel_->status());
    return true;
  }
  const absl::Time now = context_.now();
  if (!open_) {
    open_ = state == kernels::PairChannel::State::kOpen && peer_ready_;
    if (!open_ && now > offered_ + context_.options.open_within) {
      Fail(absl::DeadlineExceededError(
          absl::StrCat("not open within ", absl::FormatDuration(context_.options.open_within))));
    }
    return open_;
  }
  bool moved = false;
  for (size_t slot = 0; slot < in_flight_.size(); ++slot) {
    if (!in_flight_[slot].has_value()) continue;
    if (channel_->idle(static_cast<int>(slot))) {
      Payload sent = *std::move(in_flight_[slot]);
      in_flight_[slot].reset();
      sent.done(absl::OkStatus());
      if (channel_ == nullptr) return true;  // ended by what `done` did
      moved = true;
    } else if (now > in_flight_[slot]->started + context_.options.move_within) {
      Fail(absl::DeadlineExceededError(
          absl::StrCat("a payload made no progress within ",
                       absl::FormatDuration(context_.options.move_within))));
      return true;
    }
  }
  // The receiver has taken no payload out for long, although all slots are idle.
  if (!waiting_.empty() && now > waiting_.front().started + context_.options.move_within) {
    Fail(absl::DeadlineExceededError(absl::StrCat(
        "the peer took no payload within ", absl::FormatDuration(context_.options.move_within))));
    return true;
  }
  Pump();
  return moved;
}

void NcclSender::Pump() {
  for (size_t slot = 0; slot < in_flight_.size() && !waiting_.empty(); ++slot) {
    if (next_ordinal_ - consumed_ >= kChannelWindow) break;
    if (in_flight_[slot].has_value()) continue;
    Payload payload = std::move(waiting_.front());
    waiting_.pop_front();
    const size_t bytes = Bytes(payload.bytes);
    if (absl::Status status = Fill(static_cast<int>(slot), payload.bytes); !status.ok()) {
      waiting_.push_front(std::move(payload));
      return Fail(std::move(status));
    }
    v1::KvFrame header = payload.frame;
    header.mutable_via_channel()->set_channel(number_);
    header.mutable_via_channel()->set_ordinal(next_ordinal_++);
    header.mutable_via_channel()->set_bytes(bytes);
    context_.other->Send(peer_, header, {}, [](const absl::Status&) {});
    channel_->Start(static_cast<int>(slot), bytes);
    payload.started = context_.now();
    in_flight_[slot] = std::move(payload);
  }
  if (!waiting_.empty() && waiting_.front().started == absl::InfiniteFuture()) {
    waiting_.front().started = context_.now();
  }
}

absl::Status NcclSender::Fill(int slot, const GatherList& payload) {
  std::byte* to = channel_->slot(slot).data();
  if (context_.options.device != nullptr) return context_.options.device->FillDevice(to, payload);
  for (const absl::Span<const std::byte> piece : payload) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  return absl::OkStatus();
}

std::vector<NcclSender::Payload> NcclSender::TakeAll() {
  std::vector<Payload> all;
  for (std::optional<Payload>& payload : in_flight_) {
    if (payload.has_value()) all.push_back(*std::exchange(payload, std::nullopt));
  }
  for (Payload& payload : std::exchange(waiting_, {})) all.push_back(std::move(payload));
  return all;
}

void NcclSender::Fail(absl::Status why) {
  open_ = false;
  channel_.reset();
  Log(LogLevel::kWarning, "a KV channel to a peer failed",
      {{"kind", context_.channels->name()}, {"peer", peer_.value()}, {"reason", why.message()}});
  context_.SendChannelFrame(peer_, number_, v1::KvChannel::CLOSED, /*from_receiver=*/false);
  for (Payload& payload : TakeAll()) {
    context_.other->Send(peer_, payload.frame, std::move(payload.bytes), std::move(payload.done));
  }
}

void NcclSender::End(const absl::Status& status) {
  open_ = false;
  channel_.reset();
  for (Payload& payload : TakeAll()) payload.done(status);
}

}  // namespace tandem::transfer
