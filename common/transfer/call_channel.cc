#include "common/transfer/call_channel.h"

#include <immintrin.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::transfer {
namespace {

constexpr absl::Duration kCheckEvery = absl::Milliseconds(1);
// So that a deadline far away does not overflow epoll's milliseconds; Wait then sleeps again.
constexpr absl::Duration kSleepMax = absl::Seconds(10);

enum class MessageKind : uint64_t { kRequest = 1, kResponse = 2 };

// In front of every message's bytes.
struct Header {
  uint64_t call;
  MessageKind kind;
};

absl::Status SendMessage(MessageLink& link, Header header, MessagePieces pieces) {
  // Room for a message with a piece for each row of a batch without an allocation.
  absl::InlinedVector<absl::Span<const std::byte>, 64> all;
  all.push_back({reinterpret_cast<const std::byte*>(&header), sizeof header});
  all.insert(all.end(), pieces.begin(), pieces.end());
  return link.Send(all);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CallChannel>> CallChannel::Create(
    const Clock& clock, const CallChannelOptions& options) {
  std::unique_ptr<CallChannel> channel(new CallChannel(clock, options));
  channel->epoll_ = OwnedDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (channel->epoll_.get() < 0) {
    return absl::UnavailableError(absl::StrCat("epoll_create1: ", std::strerror(errno)));
  }
  return channel;
}

CallChannel::~CallChannel() = default;

absl::StatusOr<CallPeer> CallChannel::AddPeer(std::unique_ptr<MessageLink> link) {
  if (peers_.size() >= options_.peers_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the channel has ", peers_.size(), " peers, at most ", options_.peers_max));
  }
  const auto number = static_cast<CallPeer>(next_number_++);
  if (link->descriptor() >= 0) {
    epoll_event event = {.events = EPOLLIN, .data = {.u64 = static_cast<uint64_t>(number)}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, link->descriptor(), &event) != 0) {
      return absl::ResourceExhaustedError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
    }
  }
  Peer& peer = peers_[number];
  peer.link = std::move(link);
  peer.waiting.reserve(options_.calls_max);
  peer.open.reserve(options_.calls_max);
  return number;
}

// Closing the link's descriptor takes it out of epoll.
void CallChannel::RemovePeer(CallPeer peer) { peers_.erase(peer); }

absl::StatusOr<CallChannel::Peer*> CallChannel::Find(CallPeer number) {
  const auto found = peers_.find(number);
  if (found != peers_.end()) return &found->second;
  return absl::NotFoundError(
      absl::StrCat("the channel has no peer ", static_cast<uint64_t>(number)));
}

absl::StatusOr<CallId> CallChannel::Call(CallPeer number, MessagePieces request,
                                         absl::Time deadline) {
  ASSIGN_OR_RETURN(Peer* const peer, Find(number));
  RETURN_IF_ERROR(peer->failure);
  if (peer->waiting.size() >= options_.calls_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("peer ", static_cast<uint64_t>(number), " has ", peer->waiting.size(),
                     " calls without a response, at most ", options_.calls_max));
  }
  const auto call = static_cast<CallId>(next_number_++);
  RETURN_IF_ERROR(SendMessage(
      *peer->link, {.call = static_cast<uint64_t>(call), .kind = MessageKind::kRequest}, request));
  peer->waiting.push_back({.call = call, .deadline = deadline, .is_late = false});
  return call;
}

absl::Status CallChannel::Respond(CallPeer number, CallId call, MessagePieces response) {
  ASSIGN_OR_RETURN(Peer* const peer, Find(number));
  RETURN_IF_ERROR(peer->failure);
  const auto open = std::find(peer->open.begin(), peer->open.end(), call);
  if (open == peer->open.end()) {
    return absl::NotFoundError(absl::StrCat("call ", static_cast<uint64_t>(call), " of peer ",
                                            static_cast<uint64_t>(number), " is not open"));
  }
  RETURN_IF_ERROR(SendMessage(*peer->link,
                              {.call = static_cast<uint64_t>(call), .kind = MessageKind::kResponse},
                              response));
  peer->open.erase(open);
  return absl::OkStatus();
}

absl::Status CallChannel::HandleMessage(CallPeer number, Peer& peer,
                                        absl::Span<const std::byte> message, CallHandler& handler,
                                        size_t& handled) {
  Header header;
  if (message.size() < sizeof header) {
    return absl::DataLossError(
        absl::StrCat("a message of ", message.size(), " bytes, expected at least ", sizeof header));
  }
  std::memcpy(&header, message.data(), sizeof header);
  const absl::Span<const std::byte> bytes = message.subspan(sizeof header);
  const auto call = static_cast<CallId>(header.call);
  if (header.kind == MessageKind::kRequest) {
    if (peer.open.size() >= options_.calls_max ||
        std::find(peer.open.begin(), peer.open.end(), call) != peer.open.end()) {
      return absl::DataLossError(absl::StrCat("request ", header.call, " with ", peer.open.size(),
                                              " calls open, expected a new one and at most ",
                                              options_.calls_max));
    }
    peer.open.push_back(call);
    ++handled;
    handler.OnRequest(number, call, bytes);
    return absl::OkStatus();
  }
  if (header.kind != MessageKind::kResponse) {
    return absl::DataLossError(absl::StrCat("a message of kind ",
                                            static_cast<uint64_t>(header.kind),
                                            ", expected a request (1) or a response (2)"));
  }
  const auto waiting = std::find_if(peer.waiting.begin(), peer.waiting.end(),
                                    [&](const WaitingCall& it) { return it.call == call; });
  if (waiting == peer.waiting.end()) {
    return absl::DataLossError(
        absl::StrCat("a response to call ", header.call, ", which this end did not make"));
  }
  const bool is_late = waiting->is_late;
  peer.waiting.erase(waiting);
  if (!is_late) {
    ++handled;
    handler.OnResponse(call, bytes);
  }
  return absl::OkStatus();
}

// Handles at most as many messages as the limits allow a peer to have on the way, so that no peer
// occupies the thread.
size_t CallChannel::Receive(CallPeer number, Peer& peer, CallHandler& handler) {
  size_t handled = 0;
  for (size_t i = 0; i < 2 * options_.calls_max && peer.failure.ok(); ++i) {
    auto message = peer.link->Receive();
    if (!message.ok()) {
      peer.failure = message.status();
    } else if (message->has_value()) {
      peer.failure = HandleMessage(number, peer, **message, handler, handled);
    } else {
      break;
    }
  }
  return handled;
}

size_t CallChannel::ExpireCalls(Peer& peer, absl::Time now, CallHandler& handler) {
  size_t due = 0;
  // By index: the handler may call, which appends to the vector.
  for (size_t i = 0; i < peer.waiting.size(); ++i) {
    if (peer.waiting[i].is_late || peer.waiting[i].deadline > now) continue;
    peer.waiting[i].is_late = true;
    ++due;
    const CallId call = peer.waiting[i].call;
    handler.OnResponse(
        call, absl::DeadlineExceededError(
                  absl::StrCat("call ", static_cast<uint64_t>(call), " got no response in time")));
  }
  return due;
}

size_t CallChannel::DropFailed(CallHandler& handler) {
  size_t handled = 0;
  for (auto it = peers_.begin(); it != peers_.end();) {
    if (it->second.failure.ok()) {
      ++it;
      continue;
    }
    const CallPeer number = it->first;
    const Peer lost = std::move(it->second);
    it = peers_.erase(it);
    for (const WaitingCall& call : lost.waiting) {
      if (call.is_late) continue;
      handler.OnResponse(call.call, lost.failure);
      ++handled;
    }
    handler.OnPeerLost(number, lost.failure);
    ++handled;
  }
  return handled;
}

void CallChannel::CheckPeers() {
  for (auto& [number, peer] : peers_) {
    if (!peer.failure.ok()) continue;
    absl::Status status = peer.link->CheckPeer();
    if (status.ok()) continue;
    // What a peer sent before it ended is handled first; it can send no more.
    const bool has_message = !peer.link->PrepareSleep();
    peer.link->EndSleep();
    if (!has_message) peer.failure = std::move(status);
  }
}

size_t CallChannel::Progress(CallHandler& handler) {
  const absl::Time now = clock_.Now();
  size_t handled = 0;
  for (auto& [number, peer] : peers_) {
    handled += Receive(number, peer, handler);
    handled += ExpireCalls(peer, now, handler);
  }
  if (now >= next_check_) {
    CheckPeers();
    next_check_ = now + kCheckEvery;
  }
  return handled + DropFailed(handler);
}

bool CallChannel::PrepareSleep() {
  bool all_asleep = true;
  for (auto& [number, peer] : peers_) all_asleep = peer.link->PrepareSleep() && all_asleep;
  return all_asleep;
}

void CallChannel::EndSleep() {
  for (auto& [number, peer] : peers_) peer.link->EndSleep();
  next_check_ = absl::InfinitePast();
}

void CallChannel::Sleep(absl::Time until) {
  for (auto& [number, peer] : peers_) {
    for (const WaitingCall& call : peer.waiting) {
      if (!call.is_late) until = std::min(until, call.deadline);
    }
  }
  const bool all_asleep = PrepareSleep();
  const absl::Duration left = std::min(until - clock_.Now(), kSleepMax);
  if (all_asleep && left > absl::ZeroDuration()) {
    epoll_event event;
    const auto milliseconds = absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)));
    ::epoll_wait(epoll_.get(), &event, 1, static_cast<int>(milliseconds));
  }
  EndSleep();
}

size_t CallChannel::Wait(CallHandler& handler, absl::Time until) {
  while (true) {
    const absl::Time spin_until = std::min(clock_.Now() + options_.spin, until);
    do {
      const size_t handled = Progress(handler);
      if (handled > 0) return handled;
      _mm_pause();
    } while (clock_.Now() < spin_until);
    if (clock_.Now() >= until) return 0;
    Sleep(until);
  }
}

}  // namespace tandem::transfer
