// A UCX context with one worker, configured for the KV plane, and the small wire format around it:
// addresses and greetings. Everything the process's environment says about UCX still applies to
// what is not set here (UCX_NET_DEVICES, UCX_LOG_LEVEL). Thread safety: none; one thread at a time.
// Owner: UcxTransport.
#pragma once

#include <sys/types.h>
#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::transfer {

// UCX's words for a failed call.
absl::Status UcxError(absl::string_view what, ucs_status_t status);

// How others reach a transport. The checksum keeps damaged addresses away from UCX, which trusts
// what it unpacks.
struct UcxAddress {
  uint64_t origin = 0;  // drawn by the transport at its start
  std::string host;
  std::string worker_address;

  std::string Serialize() const;
  // kInvalidArgument for anything Serialize() did not write.
  static absl::StatusOr<UcxAddress> Parse(absl::string_view bytes);
};

class UcxWorker {
 public:
  // `transports`: as UcxOptions.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const std::string& transports);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h handle() const { return worker_; }
  const std::string& address() const { return address_; }
  size_t header_bytes_max() const { return header_bytes_max_; }
  // Until there may be something to progress, Wake() or `timeout`.
  void Wait(absl::Duration timeout);
  // Any thread.
  void Wake();

 private:
  UcxWorker() = default;
  absl::Status Init(const std::string& transports);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int worker_fd_ = -1;  // UCX's own, not to be closed
  int wake_fd_ = -1;
  size_t header_bytes_max_ = 0;
  std::string address_;
};

// "shm", "tcp" or, before the endpoint is up, "unknown".
std::string UcxTransportName(ucp_ep_h endpoint);

}  // namespace tandem::transfer
