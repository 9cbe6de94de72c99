// The transfer thread: it owns the transport and the KvTransferEndpoint, drives both, and exchanges
// commands and events with the engine thread. When idle it spins briefly, then sleeps on the
// transport's event descriptor. Thread safety: all methods from any thread. Owner: NodeRuntime.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/block_arena.h"
#include "common/transfer/in_process_transport.h"
#include "common/transfer/kv_transfer_endpoint.h"
#include "common/transfer/kv_transport.h"
#include "common/transfer/ucx_transport.h"

namespace tandem::transfer {

struct TransferServiceOptions {
  KvTransferOptions kv_transfer;
  // Commands that wait for the transfer thread; Submit refuses more.
  int64_t command_queue_max = 65536;
  // How long the thread looks for something to do before it sleeps: ordinarily, and while a peer is
  // about to send or to take the next frame of a transfer; then it gives its processor to any
  // thread that wants it. A frame of 1 MiB takes a peer 60 to 250 us; to sleep and to be woken takes
  // 50 to 100, at both ends.
  absl::Duration spin = absl::Microseconds(20);
  absl::Duration spin_in_transfer = absl::Microseconds(300);
};

class TransferService {
 public:
  using EventSink = absl::AnyInvocable<void(TransferEvent)>;  // called on the transfer thread

  // Starts the thread. `arena` outlives the service.
  static absl::StatusOr<std::unique_ptr<TransferService>> Create(
      const TransferServiceOptions& options, std::unique_ptr<KvTransport> transport,
      kv::BlockArena& arena, EventSink sink);
  // Stops the thread; open leases and exports end without events.
  virtual ~TransferService() = default;

  // kResourceExhausted when the queue is full: the command was not taken, submit it again later.
  virtual absl::Status Submit(TransferCommand command) = 0;
  virtual const std::string& address() const = 0;
  virtual TransferCounters counters() const = 0;
  // Commands that wait for the transfer thread.
  virtual int64_t backlog() const = 0;
};

}  // namespace tandem::transfer
