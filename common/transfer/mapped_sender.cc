#include "common/transfer/mapped_sender.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"

namespace tandem::transfer {
namespace {

// Keeps a header with offsets and lengths within the smallest active message header of UCX's
// transports (8 KiB); a payload in more pieces takes the other transport.
constexpr size_t kPiecesMax = 512;

}  // namespace

MappedSender::MappedSender(MappedContext& context, PeerId peer)
    : context_(context), peer_(peer), number_(context.next_number++), offered_(context.now()) {
  v1::KvMapping offer;
  offer.set_number(number_);
  offer.set_kind(v1::KvMapping::OFFER);
  offer.set_socket(context_.server->socket_name());
  offer.set_ticket(context_.server->MakeTicket(number_));
  offer.set_arena_bytes(context_.arena.bytes().size());
  context_.SendMappingFrame(peer_, std::move(offer));
}

bool MappedSender::Takes(const GatherList& payload) const {
  if (state_ != State::kOpen || payload.empty() || payload.size() > kPiecesMax) return false;
  const absl::Span<const std::byte> arena = context_.arena.bytes();
  for (const absl::Span<const std::byte> piece : payload) {
    if (piece.data() < arena.data() || piece.data() + piece.size() > arena.data() + arena.size()) {
      return false;
    }
  }
  return true;
}

void MappedSender::Send(const v1::KvFrame& frame, GatherList payload, Done done) {
  v1::KvFrame header = frame;
  v1::KvViaMapping& via = *header.mutable_via_mapping();
  via.set_mapping(number_);
  via.set_ordinal(next_ordinal_);
  for (const absl::Span<const std::byte> piece : payload) {
    via.add_offsets(static_cast<uint64_t>(piece.data() - context_.arena.bytes().data()));
    via.add_lengths(piece.size());
  }
  in_flight_.emplace(next_ordinal_++, Payload{frame, std::move(payload), std::move(done)});
  context_.other->Send(peer_, header, {}, [](const absl::Status&) {});
}

void MappedSender::OnFrame(const v1::KvMapping& frame) {
  if (frame.number() != number_ || state_ == State::kFailed) return;
  switch (frame.kind()) {
    case v1::KvMapping::READY:
      if (state_ != State::kOffered) return;
      state_ = State::kOpen;
      Log(LogLevel::kInfo, "a peer has mapped this node's KV arena", {{"peer", peer_.value()}});
      return;
    case v1::KvMapping::TAKEN:
      for (const uint64_t ordinal : frame.taken()) {
        auto taken = in_flight_.extract(ordinal);
        // What `done` does may end this mapping: then in_flight_ is empty.
        if (!taken.empty()) taken.mapped().done(absl::OkStatus());
      }
      return;
    default:
      return Fail(absl::UnavailableError("the peer declined the mapping"));
  }
}

bool MappedSender::Progress() {
  if (state_ != State::kOffered || context_.now() <= offered_ + context_.options.open_within) {
    return false;
  }
  Fail(absl::DeadlineExceededError(
      absl::StrCat("no answer within ", absl::FormatDuration(context_.options.open_within))));
  return true;
}

void MappedSender::Fail(const absl::Status& why) {
  state_ = State::kFailed;
  context_.server->Withdraw(number_);
  Log(LogLevel::kInfo, "a peer did not map this node's KV arena; payloads to it travel over UCX",
      {{"peer", peer_.value()}, {"reason", why.message()}});
  v1::KvMapping closed;
  closed.set_number(number_);
  closed.set_kind(v1::KvMapping::CLOSED);
  context_.SendMappingFrame(peer_, std::move(closed));
  for (auto& [ordinal, payload] : std::exchange(in_flight_, {})) {
    context_.other->Send(peer_, payload.frame, std::move(payload.bytes), std::move(payload.done));
  }
}

void MappedSender::End(const absl::Status& status) {
  state_ = State::kFailed;
  context_.server->Withdraw(number_);
  for (auto& [ordinal, payload] : std::exchange(in_flight_, {})) payload.done(status);
}

}  // namespace tandem::transfer
