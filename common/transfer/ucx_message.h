// The messages that UCX transports send each other. Every message is one UCX active message: a
// header of 17 bytes (kind, origin, connection), a body, and for frames a payload.
//
//   kind      body                                              travels over
//   HELLO     the sender's UcxAddress                           control endpoint
//   WELCOME   the sender's UcxAddress                           control endpoint
//   READY     empty                                             shared memory, or control
//   BYE       empty                                             control endpoint
//   FRAME     a serialized v1::KvFrame; its payload follows     shared memory, or control
//
// `origin` names the sending transport: a number that it draws when it starts. `connection` is the
// number of the greeting that a HELLO, WELCOME, READY or BYE belongs to, and 0 in frames. Both are
// written in the machine's byte order. Thread safety: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem::transfer {

class UcxWorker;
struct UcxPeer;

enum class UcxMessageKind : uint8_t { kHello = 1, kBye = 2, kFrame = 3, kWelcome = 4, kReady = 5 };

// The id under which UCX delivers every message of this transport.
inline constexpr unsigned kUcxMessageId = 3;

struct UcxHeader {
  UcxMessageKind kind = UcxMessageKind::kFrame;
  uint64_t origin = 0;
  uint64_t connection = 0;
  absl::string_view body;

  std::string Serialize() const;
  // nullopt when `bytes` is shorter than a header. `body` points into `bytes`; the kind may be one
  // that this release does not know.
  static std::optional<UcxHeader> Parse(absl::string_view bytes);
};

// A message as UCX delivers it; valid inside the callback only.
struct UcxMessage {
  UcxWorker* worker = nullptr;  // received it
  UcxPeer* shm_peer = nullptr;  // whose shared memory it came through; null: the control endpoint
  absl::string_view header;
  void* data = nullptr;  // the payload, or UCX's descriptor of it when `rendezvous`
  size_t data_bytes = 0;
  bool rendezvous = false;  // the payload is still with the sender
};

// Takes every message that arrives, inside ucp_worker_progress.
class UcxMessageSink {
 public:
  virtual ~UcxMessageSink() = default;
  virtual void OnMessage(const UcxMessage& message) = 0;
};

}  // namespace tandem::transfer
