// The KvTransport over UCX. It sends active messages through shared memory between processes of one
// host, and over TCP between hosts. It uses no remote memory access: UCX's context has no RMA
// feature, and rendezvous copies through active messages, so every byte is written by this process
// itself, inside Progress(). No two peers share a queue, so a peer that dies at any instruction
// breaks its own connection only.
//
// Parts: UcxLocal (this process's workers and address), UcxPeerTable (greetings and endings),
// UcxSender and UcxReceiver (frames), UcxSocketGuard (keeps strangers away from UCX).
// Thread safety: as KvTransport; it may be created on another thread than the one that uses it.
// Owner: TransferService.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/transfer/device_payloads.h"
#include "common/transfer/kv_transport.h"

namespace tandem::transfer {

struct UcxOptions {
  // "auto" (shared memory on one host, else TCP), "shm" or "tcp". Shared memory connections are
  // set up over TCP, so a TCP network (the loopback device is enough) is needed in any case.
  std::string transports = "auto";
  std::string host;  // names this machine; peers with an equal host are expected on shared memory
  // The fleet's secret: a process without it reaches neither UCX nor this process over TCP
  // (common/transfer/ucx_socket_guard.h).
  std::string fleet_secret;
  // Payloads lie in slots of this store, which UCX reads and writes itself; in CUDA memory, that
  // needs a UCX built with CUDA. Null: payloads lie in host memory. Shared with a NcclTransport
  // that uses this transport.
  std::shared_ptr<DevicePayloads> device;
};

// Errors: kUnavailable with UCX's message when no usable transport is found; kInvalidArgument for
// unknown `transports`; kUnimplemented as UcxCarriesCuda (ucx_on_device.h), where that is needed.
absl::StatusOr<std::unique_ptr<KvTransport>> NewUcxTransport(const UcxOptions& options);

}  // namespace tandem::transfer
