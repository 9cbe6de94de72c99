// A link between two processes over a connected TCP socket.
//
//   length (8 bytes) | message, padded to 8 bytes | tag (16)
//
// The message is encrypted, and the tag covers it and the length: AES-256-GCM under a key of this
// connection and direction, with the message's number as nonce. A message that the network changed,
// left out or sent again fails the link with kDataLoss. A reader of the network sees lengths only.
//
// A message costs system calls on both ends. What the socket does not take at once waits in a
// buffer of at most LinkLimits::ring_bytes; every call of the owner tries to send it.
// Thread safety: none; the thread of the link's channel. No call blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/transfer/message_link.h"
#include "common/transfer/owned_descriptor.h"

namespace tandem::transfer {

inline constexpr size_t kTcpLinkKeyBytes = 32;

// One key for each direction. They are used for one connection and never again: with the same key,
// two messages of one number would give the key away.
struct TcpLinkKeys {
  std::string send;
  std::string receive;
};

class TcpLink : public MessageLink {
 public:
  // `socket`: connected. Errors: CheckLimits; kInvalidArgument for keys of another length than
  // kTcpLinkKeyBytes; kResourceExhausted when the system refuses.
  static absl::StatusOr<std::unique_ptr<TcpLink>> Create(OwnedDescriptor socket,
                                                         const TcpLinkKeys& keys,
                                                         const LinkLimits& limits);
  ~TcpLink() override;

  absl::Status Send(MessagePieces message) override;
  absl::StatusOr<std::optional<absl::Span<const std::byte>>> Receive() override;
  bool PrepareSleep() override;
  void EndSleep() override;
  absl::Status CheckPeer() override;
  int descriptor() const override { return epoll_.get(); }

 private:
  class RecordCipher;

  TcpLink(OwnedDescriptor socket, const TcpLinkKeys& keys, const LinkLimits& limits);
  // Sends what waits, as far as the socket takes it.
  void Flush();
  // Reads what has arrived, as far as a record may be long.
  void ReadSome();
  // The length of the next record's message when all of it is there. Errors: kDataLoss.
  absl::StatusOr<std::optional<size_t>> NextMessage() const;
  bool WatchForRoom(bool watch);
  absl::Status Fail(absl::Status why);

  const OwnedDescriptor socket_;
  // Holds the socket alone, so that an owner who waits on descriptor() also hears when the socket
  // has room again for what waits.
  OwnedDescriptor epoll_;
  bool watches_room_ = false;
  const LinkLimits limits_;
  std::unique_ptr<RecordCipher> sent_cipher_, received_cipher_;
  // Records that the socket has not taken, from out_begin_. Bound: LinkLimits::ring_bytes.
  std::vector<std::byte> out_;
  size_t out_begin_ = 0;
  // Read and not handed out: [in_begin_, in_end_). Bound: one record, allocated once.
  std::vector<std::byte> in_;
  size_t in_begin_ = 0, in_end_ = 0;
  bool closed_ = false;  // by the other end
  absl::Status failure_;
};

}  // namespace tandem::transfer
