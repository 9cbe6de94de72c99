// The KvTransport over UCX: active messages in shared memory between processes of one host, over
// TCP between hosts. No remote memory access: UCX's context has no RMA feature and rendezvous
// copies through active messages, so that every byte lands by this process's own hand inside
// Progress(). Thread safety: as KvTransport; may be created on another thread than the one that
// uses it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/transfer/kv_transport.h"

namespace tandem::transfer {

struct UcxOptions {
  // "auto" (shared memory on one host, else TCP), "shm" or "tcp".
  std::string transports = "auto";
  std::string host;  // names this machine; peers with an equal host are expected on shared memory
};

// kUnavailable with UCX's words when no usable transport is found; kInvalidArgument for unknown
// `transports`.
absl::StatusOr<std::unique_ptr<KvTransport>> NewUcxTransport(const UcxOptions& options);

}  // namespace tandem::transfer
