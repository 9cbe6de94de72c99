// A link between two processes of one host: one ring for each direction, in memory that both map
// for writing, and a Unix socket between them.
//
// The memory holds only the rings. Neither end trusts what the other can write there: each keeps
// its own position, accepts the other's position only if it is a possible one, reads a length once
// and checks it, masks every offset, and copies a message before it reads it. So a hostile peer can
// send bad messages, which it could do anyway, and nothing else.
//
// The socket has two uses. Its closing shows that the other process has ended, however it ended. A
// byte in it wakes the other end, and is sent only if that end said that it sleeps: while both
// spin, a message costs no system call.
// Thread safety: none; the thread of the link's channel.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/transfer/message_link.h"
#include "common/transfer/owned_descriptor.h"

namespace tandem::transfer {

// Memory for both rings of one link: a memfd of its final size, sealed so that neither end can
// shrink it under the other. Errors: CheckLimits; kResourceExhausted when the system refuses.
absl::StatusOr<OwnedDescriptor> NewRingMemory(const LinkLimits& limits);

class SharedRingLink : public MessageLink {
 public:
  enum class Side { kFirst, kSecond };  // each end takes another one

  // `socket`: one end of a connected Unix socket. Errors: CheckLimits; kInvalidArgument when
  // `memory` is not a sealed memfd of the limits' size; kResourceExhausted when mapping fails.
  static absl::StatusOr<std::unique_ptr<SharedRingLink>> Create(OwnedDescriptor socket,
                                                                const OwnedDescriptor& memory,
                                                                Side side,
                                                                const LinkLimits& limits);
  ~SharedRingLink() override;

  absl::Status Send(MessagePieces message) override;
  absl::StatusOr<std::optional<absl::Span<const std::byte>>> Receive() override;
  bool PrepareSleep() override;
  void EndSleep() override;
  absl::Status CheckPeer() override;
  int descriptor() const override { return socket_.get(); }

 private:
  struct Ring;  // a ring's positions in the shared memory

  SharedRingLink(OwnedDescriptor socket, std::byte* base, Side side, const LinkLimits& limits);
  void CopyIn(uint64_t position, absl::Span<const std::byte> bytes);
  void CopyOut(uint64_t position, absl::Span<std::byte> bytes) const;
  absl::Status Fail(absl::Status why);

  const OwnedDescriptor socket_;
  std::byte* const base_;
  const LinkLimits limits_;
  Ring* out_;
  Ring* in_;
  std::byte* out_bytes_;
  const std::byte* in_bytes_;
  uint64_t sent_ = 0;       // this end's position in out_
  uint64_t sent_read_ = 0;  // how far the other end has read out_, as last accepted
  uint64_t received_ = 0;   // this end's position in in_
  // The message received last. Bound: message_bytes_max, allocated once.
  std::vector<std::byte> message_;
  absl::Status failure_;
};

}  // namespace tandem::transfer
