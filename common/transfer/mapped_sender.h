// The sending end of one mapping: the offer of this process's arena to one peer, and the payloads
// that the peer has not taken yet.
// Invariants: every payload completes exactly once: when the peer has taken it, through the other
// transport when the mapping failed, or with the error of the lost peer.
// Thread safety: none; the transfer thread. Owner: the MappedTransport, until the peer is lost.
#pragma once

#include <cstdint>

#include "absl/container/btree_map.h"
#include "common/transfer/mapped_context.h"

namespace tandem::transfer {

class MappedSender {
 public:
  using Done = absl::AnyInvocable<void(const absl::Status&)>;

  // Offers the arena to `peer`.
  MappedSender(MappedContext& context, PeerId peer);
  ~MappedSender() { context_.server->Withdraw(number_); }

  bool open() const { return state_ == State::kOpen; }
  // An answer to the offer is due: call Progress() again soon.
  bool opening() const { return state_ == State::kOffered; }
  // Whether Send takes the payload: the mapping is open, the pieces lie in the arena, and they are
  // few enough for a header.
  bool Takes(const GatherList& payload) const;
  // As KvTransport::Send. REQUIRES: Takes(payload).
  void Send(const v1::KvFrame& frame, GatherList payload, Done done);
  // READY, TAKEN or CLOSED from the peer.
  void OnFrame(const v1::KvMapping& frame);
  // Gives the offer up when it is late; says whether anything happened.
  bool Progress();
  // The peer is lost: completes everything with `status`.
  void End(const absl::Status& status);

 private:
  enum class State { kOffered, kOpen, kFailed };
  struct Payload {
    v1::KvFrame frame;
    GatherList bytes;
    Done done;
  };

  // Ends the mapping and sends what was not taken through the other transport.
  void Fail(const absl::Status& why);

  MappedContext& context_;
  const PeerId peer_;
  const uint64_t number_;
  const absl::Time offered_;
  State state_ = State::kOffered;
  uint64_t next_ordinal_ = 0;
  // By ordinal. Bound: the payloads in flight that the KV transfer allows.
  absl::btree_map<uint64_t, Payload> in_flight_;
};

}  // namespace tandem::transfer
