// The KvTransport over UCX: active messages in shared memory between processes of one host, over
// TCP between hosts. No remote memory access: UCX's context has no RMA feature and rendezvous
// copies through active messages, so that every byte lands by this process's own hand inside
// Progress(). A pair of processes shares no queue with any other process, so a peer that dies at
// any instruction takes nobody's connection along. Thread safety: as KvTransport; may be created on
// another thread than the one that uses it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/transfer/device_payloads.h"
#include "common/transfer/kv_transport.h"

namespace tandem::transfer {

struct UcxOptions {
  // "auto" (shared memory on one host, else TCP), "shm" or "tcp". Shared memory connections are
  // arranged over TCP, so a TCP network (the loopback device is enough) is needed in any case.
  std::string transports = "auto";
  std::string host;  // names this machine; peers with an equal host are expected on shared memory
  // The fleet's: who does not hold it reaches neither UCX nor this process over TCP
  // (common/transfer/ucx_socket_guard.h).
  std::string fleet_secret;
  // Payloads lie in its slots, which UCX reads and writes itself: CUDA memory, by a UCX that knows
  // it. Null: in host memory. Shared with a NcclTransport where one lies on top.
  std::shared_ptr<DevicePayloads> device;
};

// kUnavailable with UCX's words when no usable transport is found; kInvalidArgument for unknown
// `transports`; kUnimplemented as UcxCarriesCuda, where that is needed.
absl::StatusOr<std::unique_ptr<KvTransport>> NewUcxTransport(const UcxOptions& options);

// Whether this UCX says that it carries CUDA memory; else kUnimplemented with its version and what
// it carries.
absl::Status UcxCarriesCuda();
// "UCX 1.13.1, host memory only"
std::string DescribeUcx();
// Moves payloads of `options.device` from a few of its blocks to others through a pair of
// transports as NewUcxTransport makes them, of several sizes, and verifies what came. REQUIRES: no
// block holds anything yet. Errors: what did not travel, and why.
absl::Status TryUcxOnDevice(const UcxOptions& options);

}  // namespace tandem::transfer
