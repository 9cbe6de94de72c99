// A gRPC server with health and reflection, as every process of ours runs one.
// Thread safety: SetHealth from any thread; the rest by the owner.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls.h"

namespace tandem::rpc {

// The largest message that a server reads, in bytes. Of a client: prompts of a long context as
// token ids stay well below it.
inline constexpr int kClientMessageBytesMax = 64 << 20;
// Of a node: strangers can make a router hold as many times this as it hears at once.
inline constexpr int kNodeMessageBytesMax = 4 << 20;

class Server {
 public:
  // Listens on `address` (host:port; port 0 picks one). The services outlive the server. Calls with
  // a message of more than `message_bytes_max` end with RESOURCE_EXHAUSTED. Without TLS when `tls`
  // names no files.
  // kUnavailable naming the address when it cannot be bound, e.g. in use; and as LoadSslContext.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const std::string& address,
                                                       const std::vector<grpc::Service*>& services,
                                                       int message_bytes_max,
                                                       const TlsFiles& tls = {});
  ~Server();

  // The port bound.
  int port() const { return port_; }
  // "host:port" with the port bound.
  const std::string& address() const { return address_; }
  // The health service's answer for `service`: "" is liveness, "ready" is readiness.
  void SetHealth(const std::string& service, bool serving);
  // Stops accepting; calls still open after `grace` are cancelled. Returns when all ended.
  void Shutdown(absl::Duration grace);

 private:
  Server() = default;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  int port_ = 0;
  bool stopped_ = false;
};

}  // namespace tandem::rpc
