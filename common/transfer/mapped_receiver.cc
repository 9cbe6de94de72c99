#include "common/transfer/mapped_receiver.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "common/transfer/checked_copy.h"

namespace tandem::transfer {
namespace {

// Bytes taken, and payloads, before their owner hears of it: so few that the owner, who may have
// bytes_ahead_max before this process, prepares the next ones while this process copies.
constexpr size_t kTakenBytesMax = 512 << 10;
constexpr int kTakenMax = 16;

}  // namespace

MappedReceiver::MappedReceiver(MappedContext& context, PeerId peer, const v1::KvMapping& offer,
                               const absl::Status& declined)
    : context_(context),
      peer_(peer),
      number_(offer.number()),
      arena_bytes_(offer.arena_bytes()),
      give_up_(context.now() + context.options.open_within) {
  if (!declined.ok()) {
    Fail(declined);
    return;
  }
  context_.mapped_bytes += arena_bytes_;
  counted_ = true;
  offer_ = offer;
  if (const absl::Status called = Call(); !called.ok()) Fail(called);
}

bool MappedReceiver::Progress() {
  if (opening()) {
    const absl::Status opened = Open();
    if (!opened.ok()) Fail(opened);
    return !opening();
  }
  if (taken_.taken().empty()) return false;
  ReportTaken();
  return true;
}

absl::Status MappedReceiver::Call() {
  auto call = ArenaDescriptorCall::Start(context_.options.fleet_secret, offer_->socket(),
                                         offer_->ticket(), number_);
  if (absl::IsResourceExhausted(call.status()) && context_.now() <= give_up_)
    return absl::OkStatus();
  RETURN_IF_ERROR(call.status());
  call_ = *std::move(call);
  return absl::OkStatus();
}

absl::Status MappedReceiver::Open() {
  if (call_ == nullptr) return Call();
  ASSIGN_OR_RETURN(const std::optional<OwnedDescriptor> descriptor, call_->Poll());
  if (!descriptor.has_value()) {
    if (context_.now() <= give_up_) return absl::OkStatus();
    return absl::DeadlineExceededError("the owner sent no descriptor");
  }
  call_.reset();
  offer_.reset();
  ASSIGN_OR_RETURN(arena_, MappedArena::Map(*descriptor, arena_bytes_));
  Tell(v1::KvMapping::READY);
  return absl::OkStatus();
}

absl::StatusOr<GatherList> MappedReceiver::PiecesOf(const v1::KvViaMapping& via) const {
  GatherList pieces;
  if (via.offsets_size() == 0 || via.offsets_size() != via.lengths_size()) {
    return absl::InvalidArgumentError(absl::StrCat("a mapped payload has ", via.offsets_size(),
                                                   " offsets and ", via.lengths_size(),
                                                   " lengths, expected as many of each"));
  }
  pieces.reserve(static_cast<size_t>(via.offsets_size()));
  for (int i = 0; i < via.offsets_size(); ++i) {
    const uint64_t offset = via.offsets(i), length = via.lengths(i);
    if (length == 0 || length > arena_bytes_ || offset > arena_bytes_ - length) {
      return absl::InvalidArgumentError(absl::StrCat("a piece of ", length, " bytes at offset ",
                                                     offset, ", expected it inside the arena's ",
                                                     arena_bytes_, " bytes"));
    }
    pieces.push_back(arena_->bytes().subspan(offset, length));
  }
  return pieces;
}

void MappedReceiver::OnHeader(const v1::KvFrame& frame) {
  // Without a mapping the owner has sent the payload again, or is about to.
  if (arena_ == nullptr) return;
  const absl::StatusOr<GatherList> pieces = PiecesOf(frame.via_mapping());
  if (!pieces.ok()) return Fail(pieces.status());
  Land(frame, *pieces);
  if (arena_ == nullptr) return;  // the listener ended the connection
  taken_.add_taken(frame.via_mapping().ordinal());
  taken_bytes_ += Bytes(*pieces);
  if (taken_bytes_ >= kTakenBytesMax || taken_.taken_size() >= kTakenMax) ReportTaken();
}

void MappedReceiver::Land(const v1::KvFrame& frame, const GatherList& pieces) {
  if (context_.listener == nullptr) return;
  v1::KvFrame header = frame;
  header.clear_via_mapping();
  const uint64_t id = context_.next_receive++;
  ReceiveInterval interval;
  interval.began = context_.now();
  const size_t bytes = Bytes(pieces);
  const std::optional<ScatterList> place = context_.listener->OnFrame(peer_, header, bytes, id);
  if (!place.has_value()) return;
  absl::Status landed;
  if (arena_ == nullptr) {
    landed = absl::CancelledError("the mapping was given up before the payload was copied");
  } else {
    interval.checksum = CopyWithChecksum(pieces, *place);
  }
  interval.landed = context_.now();
  context_.listener->OnPayload(id, landed, interval);
}

void MappedReceiver::ReportTaken() {
  taken_.set_number(number_);
  taken_.set_kind(v1::KvMapping::TAKEN);
  taken_.set_from_reader(true);
  context_.SendMappingFrame(peer_, taken_);
  taken_.clear_taken();
  taken_bytes_ = 0;
}

void MappedReceiver::Tell(v1::KvMapping::Kind kind) {
  v1::KvMapping frame;
  frame.set_number(number_);
  frame.set_kind(kind);
  frame.set_from_reader(true);
  context_.SendMappingFrame(peer_, std::move(frame));
}

void MappedReceiver::Unmap() {
  call_.reset();
  offer_.reset();
  arena_.reset();
  if (std::exchange(counted_, false)) context_.mapped_bytes -= arena_bytes_;
}

void MappedReceiver::Fail(const absl::Status& why) {
  Unmap();
  Log(LogLevel::kWarning, "cannot map a peer's KV arena; its payloads travel over UCX",
      {{"peer", peer_.value()}, {"reason", why.message()}});
  Tell(v1::KvMapping::CLOSED);
}

}  // namespace tandem::transfer
