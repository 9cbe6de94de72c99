// A gRPC server with the health and reflection services: every process of the cluster runs one.
// Thread safety: any thread may call SetHealth; the owner calls the rest.
// Owner: the process's main object (a node or a router).
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls.h"

namespace tandem::rpc {

// What callers may make a server hold.
struct ServerLimits {
  // The largest message, in bytes. gRPC reads a call's first message before it tells the service of
  // the call, and so before the service can look at the caller's key.
  int message_bytes_max = 1 << 20;
  // Memory for all connections of the server together; 0 = no bound. gRPC stops reading when it is
  // used up, and then ends calls.
  int64_t memory_bytes_max = 0;
  // Calls that one connection has open at a time; a client's others wait for their turn.
  int streams_max = 1024;
  // The server tells which services it has, and their messages. One that does not needs another
  // service.
  bool reflection = true;
};

// From clients. A long context's prompt as token ids stays well below this; HTTP bodies have the
// same bound.
inline constexpr int kClientMessageBytesMax = 16 << 20;
inline constexpr ServerLimits kClientLimits = {.message_bytes_max = kClientMessageBytesMax,
                                               .memory_bytes_max = int64_t{1} << 30,
                                               .streams_max = 4096};
// From a node. The message is small because anyone who can connect makes the router hold this much
// for each open stream, before the router knows who sent it.
inline constexpr int kNodeMessageBytesMax = 4 << 20;
// From a router to a node.
inline constexpr int kRouterMessageBytesMax = 64 << 20;
inline constexpr ServerLimits kNodeLimits = {.message_bytes_max = kNodeMessageBytesMax};

// How a server's connections are encrypted, and whom it serves.
struct ServerTls {
  TlsFiles files;    // none: plain text
  PeerRule callers;  // where clients show certificates
};

class Server {
 public:
  // Listens on `address` (host:port; port 0 picks a free one). `services` outlive the server. A
  // call with a message of more than `limits` allow ends with RESOURCE_EXHAUSTED; one whose caller
  // breaks tls.callers with PERMISSION_DENIED. Errors: kUnavailable, which names the address, when
  // it cannot be bound (it is in use); and those of LoadSslContext.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const std::string& address,
                                                       const std::vector<grpc::Service*>& services,
                                                       const ServerLimits& limits,
                                                       const ServerTls& tls = {});
  ~Server();

  // The port that the server listens on.
  int port() const { return port_; }
  // "host:port" with that port.
  const std::string& address() const { return address_; }
  // Sets the health service's answer for `service`: "" means liveness, "ready" means readiness.
  void SetHealth(const std::string& service, bool serving);
  // Stops accepting calls, and cancels those still open after `grace`. Returns when all have ended.
  void Shutdown(absl::Duration grace);

 private:
  Server() = default;
  // Bound: the versions of the reflection protocol (2). Outlives server_.
  std::vector<std::unique_ptr<grpc::Service>> reflection_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  int port_ = 0;
  bool stopped_ = false;
};

}  // namespace tandem::rpc
