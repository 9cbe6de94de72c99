// This process's end of every UCX connection: the contexts (one for TCP, one for shared memory),
// the control worker that all peers reach over TCP, and the address by which they reach it.
// Invariants: the control worker lives from Start to StopControl; the contexts outlive all workers.
// Thread safety: none; one thread at a time. Owner: UcxTransport.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/runtime/random.h"
#include "common/transfer/ucx_address.h"
#include "common/transfer/ucx_transport.h"
#include "common/transfer/ucx_worker.h"

namespace tandem::transfer {

class UcxLocal {
 public:
  explicit UcxLocal(const UcxOptions& options);

  // Opens the contexts and the control worker; messages to it arrive at `on_message` with `arg`.
  // Call once, before everything else. Errors: as NewUcxTransport.
  absl::Status Start(ucp_am_recv_callback_t on_message, void* arg);
  // Destroys the control worker; UCX runs the callbacks of the requests that it still keeps.
  void StopControl() { control_.reset(); }

  const UcxOptions& options() const { return options_; }
  uint64_t origin() const { return origin_; }
  UcxWorker& control() { return *control_; }
  const UcxAddress& address() const { return address_; }
  // Names one greeting; never 0.
  uint64_t NewConnectionNumber() { return random_->Next() | 1; }

  // Whether this process and the one at `address` agree to use shared memory; TCP.
  bool SharesMemoryWith(const UcxAddress& address) const;
  bool MayUseTcpWith(const UcxAddress& address) const;
  // A worker for the shared memory of one peer. REQUIRES: SharesMemoryWith that peer.
  absl::StatusOr<std::unique_ptr<UcxWorker>> NewShmWorker(ucp_am_recv_callback_t on_message,
                                                          void* arg);
  // The longest message header that every worker so far can send.
  size_t header_bytes_max() const { return header_bytes_max_; }
  // The kind of memory that a piece of a payload lies in: a device slot, or host memory.
  ucs_memory_type_t MemoryOf(const std::byte* piece) const;

 private:
  absl::Status StartShm(UcxContext::Memory memory);

  const UcxOptions options_;
  const std::unique_ptr<Random> random_;
  const uint64_t origin_;
  std::unique_ptr<UcxContext> tcp_context_;
  std::unique_ptr<UcxContext> shm_context_;  // null: shared memory is not wanted, or not available
  std::unique_ptr<UcxWorker> control_;
  UcxAddress address_;
  size_t header_bytes_max_ = 0;
};

}  // namespace tandem::transfer
