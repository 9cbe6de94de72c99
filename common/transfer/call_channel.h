// Calls between engine threads: a request of bytes to one of many peers, and its response. Made for
// exchanges inside a step (one for each layer), where a thread that waits costs the step: while
// both ends spin, a call takes two copies at each end and no system call.
//
//   debtor                                    creditor
//   Call(peer, pieces, deadline) ──request──▶ OnRequest(peer, call, bytes)
//   OnResponse(call, bytes)      ◀─response── Respond(peer, call, pieces)
//
// Every channel does both: it calls, and it serves. A peer that ends, hangs or breaks the format
// fails its own calls and nothing else.
// Invariants: every call that Call accepted gets one OnResponse, unless the channel ends first. A
// peer has at most calls_max calls of this end unanswered; one that passed its deadline counts
// until its response comes or the peer is removed, so a hung peer cannot make the other end's
// memory grow. Thread safety: none; the engine thread. Owner: the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/runtime/clock.h"
#include "common/transfer/message_link.h"
#include "common/transfer/owned_descriptor.h"

namespace tandem::transfer {

// Numbers that a channel gives out and never uses again.
enum class CallPeer : uint64_t {};
enum class CallId : uint64_t {};

class CallHandler {
 public:
  virtual ~CallHandler() = default;
  // A peer asks; Respond answers, now or later. `bytes` are valid during the call.
  virtual void OnRequest(CallPeer peer, CallId call, absl::Span<const std::byte> bytes) = 0;
  // The response of one of this end's calls, valid during the call. Errors: kDeadlineExceeded;
  // kUnavailable or kDataLoss: the peer is lost.
  virtual void OnResponse(CallId call, absl::StatusOr<absl::Span<const std::byte>> bytes) = 0;
  // The peer is removed; its calls have had their OnResponse before.
  virtual void OnPeerLost(CallPeer peer, const absl::Status& why) = 0;
};

struct CallChannelOptions {
  // Unanswered calls between this end and one peer, in each direction. The other end needs the
  // same.
  size_t calls_max = 4;
  size_t peers_max = 64;
  // How long Wait spins before it sleeps. A thread that waits for a step's answers wants the time
  // that an answer takes; an idle one sleeps after it and burns no core.
  absl::Duration spin = absl::Microseconds(50);
};

class CallChannel {
 public:
  // `clock` outlives the channel. Errors: kUnavailable when the system gives no descriptor.
  static absl::StatusOr<std::unique_ptr<CallChannel>> Create(const Clock& clock,
                                                             const CallChannelOptions& options);
  ~CallChannel();

  // Errors: kResourceExhausted at peers_max, or when the system cannot watch one link more.
  absl::StatusOr<CallPeer> AddPeer(std::unique_ptr<MessageLink> link);
  // Forgets the peer: its calls get no OnResponse. No effect on an unknown one. REQUIRES: not
  // called from a handler.
  void RemovePeer(CallPeer peer);

  // Errors: kNotFound for an unknown peer; kResourceExhausted when calls_max calls are unanswered
  // or the link is full; kInvalidArgument when the link takes no message so long. After any error
  // nothing was sent and no OnResponse follows.
  absl::StatusOr<CallId> Call(CallPeer peer, MessagePieces request, absl::Time deadline);
  // Errors: as for Call; kNotFound also for a call that is not open, which is so when its peer has
  // gone.
  absl::Status Respond(CallPeer peer, CallId call, MessagePieces response);

  // Handles what has arrived and what is due, and returns how many handler calls were made. Makes
  // no system call, except every kCheckEvery (1 ms) to notice peers that have ended. REQUIRES: not
  // called from a handler; handlers may call Call and Respond, and nothing else.
  size_t Progress(CallHandler& handler);
  // As Progress, but waits for the first thing to handle, at most until `until`: spins, then
  // sleeps.
  size_t Wait(CallHandler& handler, absl::Time until);

  // For a thread that waits for other descriptors beside the channel's:
  //   if (channel.PrepareSleep()) poll({channel.descriptor(), ...});
  //   channel.EndSleep();
  // Readable when a peer has something to handle.
  int descriptor() const { return epoll_.get(); }
  // False when a message is there already.
  bool PrepareSleep();
  // The next Progress looks for peers that have ended.
  void EndSleep();

 private:
  struct WaitingCall {
    CallId call;
    absl::Time deadline;
    bool is_late;  // past its deadline, and unanswered
  };
  struct Peer {
    std::unique_ptr<MessageLink> link;
    // Calls without a response. Bound: calls_max, late ones included.
    std::vector<WaitingCall> waiting;
    // The peer's calls that Respond has to answer. Bound: calls_max.
    std::vector<CallId> open;
    absl::Status failure;
  };

  CallChannel(const Clock& clock, const CallChannelOptions& options)
      : clock_(clock), options_(options) {}
  absl::StatusOr<Peer*> Find(CallPeer number);
  size_t Receive(CallPeer number, Peer& peer, CallHandler& handler);
  absl::Status HandleMessage(CallPeer number, Peer& peer, absl::Span<const std::byte> message,
                             CallHandler& handler, size_t& handled);
  size_t ExpireCalls(Peer& peer, absl::Time now, CallHandler& handler);
  size_t DropFailed(CallHandler& handler);
  void CheckPeers();
  void Sleep(absl::Time until);

  const Clock& clock_;
  const CallChannelOptions options_;
  OwnedDescriptor epoll_;
  // Bound: peers_max.
  absl::btree_map<CallPeer, Peer> peers_;
  uint64_t next_number_ = 1;
  absl::Time next_check_ = absl::InfinitePast();
};

}  // namespace tandem::transfer
