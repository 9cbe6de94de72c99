// RAII for UCX's objects, configured for the KV plane: a context (the choice of transports), its
// workers (each receives through queues of its own) and their endpoints. UCX's environment
// variables (UCX_NET_DEVICES, UCX_LOG_LEVEL) still decide what is not set here. Thread safety:
// none; one thread at a time, except WakeEvent::Wake. Owners: UcxLocal and UcxPeerTable.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::transfer {

// kUnavailable with UCX's message for a failed call.
absl::Status UcxError(absl::string_view what, ucs_status_t status);

class UcxContext {
 public:
  enum class Memory { kHost, kHostAndCuda };
  // `tls`: UCX's name of the one transport to use, "tcp" or "posix". Errors: kUnimplemented when
  // this UCX does not carry the memory (says its version, and what it carries).
  static absl::StatusOr<std::unique_ptr<UcxContext>> Create(const std::string& tls,
                                                            Memory memory = Memory::kHost);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h handle() const { return context_; }

 private:
  UcxContext() = default;
  ucp_context_h context_ = nullptr;
};

class UcxWorker {
 public:
  // `context` outlives the worker.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(UcxContext& context);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // Active messages of `id` arrive, whole, at `on_message` with `arg`.
  absl::Status Handle(unsigned id, ucp_am_recv_callback_t on_message, void* arg);

  ucp_worker_h handle() const { return worker_; }
  const std::string& address() const { return address_; }
  size_t header_bytes_max() const { return header_bytes_max_; }
  // UCX's own descriptor; readable when there is something to progress, once armed.
  int fd() const { return fd_; }
  // False when something happened since the last progress, so that there is nothing to wait for.
  bool Arm() { return ucp_worker_arm(worker_) == UCS_OK; }

 private:
  UcxWorker() = default;
  absl::Status Init(UcxContext& context);

  ucp_worker_h worker_ = nullptr;
  int fd_ = -1;
  size_t header_bytes_max_ = 0;
  std::string address_;
};

// A worker's endpoint to another worker. Ends by StartClose and, some progress later, Closed.
class UcxEndpoint {
 public:
  UcxEndpoint() = default;
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;

  // UCX calls `on_error` with `arg` when the other side is gone. Call once. kUnavailable when UCX
  // cannot reach the address.
  absl::Status Open(UcxWorker& worker, const std::string& address, ucp_err_handler_cb_t on_error,
                    void* arg);
  bool open() const { return handle_ != nullptr; }
  ucp_ep_h handle() const { return handle_; }
  // Gives up what is in flight: its callbacks run with an error. Later calls have no effect.
  void StartClose();
  // Whether UCX has closed it; true for an endpoint that was never open.
  bool Closed();

 private:
  ucp_ep_h handle_ = nullptr;
  ucs_status_ptr_t closing_ = nullptr;  // UCX's close request
};

// Sleeps until a worker's descriptor is readable or another thread calls Wake.
class WakeEvent {
 public:
  static absl::StatusOr<std::unique_ptr<WakeEvent>> Create();
  ~WakeEvent();
  WakeEvent(const WakeEvent&) = delete;
  WakeEvent& operator=(const WakeEvent&) = delete;

  // Until one of the armed workers' descriptors is readable, Wake() or `timeout`.
  void Wait(const std::vector<int>& fds, absl::Duration timeout);
  // Any thread.
  void Wake();

 private:
  explicit WakeEvent(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace tandem::transfer
