// Passes the descriptor of a shareable arena from its owner to a process of the same host, over an
// abstract Unix socket. The owner makes a ticket and sends it over the KV plane. The reader
// connects to the owner's socket and proves the fleet's secret with a tag over the ticket; the
// owner checks tag and user and answers with the descriptor. A ticket is good for one descriptor,
// and until it is withdrawn.
//
//   reader  number (8 bytes) | tag (32) ─▶  owner
//   reader  ◀─ one byte, with the descriptor  owner; or the connection ends
//
// The socket's name belongs to the network namespace: processes in two of them cannot reach each
// other, and their payloads go the way they went before.
// Thread safety: none; the transfer thread. No call blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/transfer/owned_descriptor.h"

namespace tandem::transfer {

// The owner's end. Connections beyond kCallersMax (16) wait in the kernel, each taken one has
// kCallerTime (1 s) to prove itself. Owner: MappedTransport.
class ArenaDescriptorServer {
 public:
  // `descriptor`: the arena's, which outlives the server. Errors: kUnavailable when the system
  // gives no socket.
  static absl::StatusOr<std::unique_ptr<ArenaDescriptorServer>> Start(const std::string& secret,
                                                                      int descriptor);

  const std::string& socket_name() const { return name_; }
  // A new ticket for offer `number`.
  std::string MakeTicket(uint64_t number);
  void Withdraw(uint64_t number) { tickets_.erase(number); }
  // Serves the callers that have connected; without open tickets it accepts none. Says whether
  // anything happened.
  bool Progress(absl::Time now);

 private:
  struct Caller {
    OwnedDescriptor socket;
    absl::Time give_up;
  };
  ArenaDescriptorServer(const std::string& secret, int descriptor)
      : secret_(secret), descriptor_(descriptor) {}
  absl::Status Listen();
  // Whether the caller is done: answered or refused.
  bool Serve(const Caller& caller);

  const std::string secret_;
  const int descriptor_;
  std::string name_;
  OwnedDescriptor listener_;
  // Bound: the offers of MappedTransport that no peer has answered.
  absl::btree_map<uint64_t, std::string> tickets_;
  // Bound: kCallersMax (16), then callers wait in the kernel.
  std::vector<Caller> callers_;
};

// The reader's end of one offer. Owner: MappedReceiver.
class ArenaDescriptorCall {
 public:
  // Connects and sends the proof. Errors: kUnavailable when the owner cannot be reached, which is
  // so from another network namespace.
  static absl::StatusOr<std::unique_ptr<ArenaDescriptorCall>> Start(const std::string& secret,
                                                                    const std::string& socket_name,
                                                                    const std::string& ticket,
                                                                    uint64_t number);
  // nullopt: no answer yet. Errors: the owner refused.
  absl::StatusOr<std::optional<OwnedDescriptor>> Poll();

 private:
  explicit ArenaDescriptorCall(OwnedDescriptor socket) : socket_(std::move(socket)) {}
  OwnedDescriptor socket_;
};

// Another process's arena, mapped for reading. Its bytes may change at any time; they cannot
// vanish, because the descriptor is sealed against shrinking, so reading never faults.
class MappedArena {
 public:
  // Maps `bytes` bytes. Errors: kInvalidArgument when the descriptor is not a memfd of that size
  // with these seals; kResourceExhausted when the system refuses.
  static absl::StatusOr<std::unique_ptr<MappedArena>> Map(const OwnedDescriptor& descriptor,
                                                          uint64_t bytes);
  ~MappedArena();
  MappedArena(const MappedArena&) = delete;
  MappedArena& operator=(const MappedArena&) = delete;

  absl::Span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedArena(absl::Span<const std::byte> bytes) : bytes_(bytes) {}
  const absl::Span<const std::byte> bytes_;
};

}  // namespace tandem::transfer
