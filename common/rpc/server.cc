#include "common/rpc/server.h"

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/library_log.h"
#include "common/rpc/reflection_service.h"
#include "grpc/health/v1/health.pb.h"

namespace tandem::rpc {

namespace {

// gRPC closes the connection of a peer that pings more often. Nodes ping every two seconds.
constexpr int kPingsEveryMs = 1000;
// The server closes a connection that has not begun HTTP/2 within this time. gRPC's own limit is
// two minutes, in which silent connections could use up the file descriptors.
constexpr int kHandshakeWithinMs = 5000;
// The server closes a connection without a call for this long; a client opens another when it
// needs one.
constexpr int kIdleMaxMs = 10 * 60 * 1000;

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const std::string& address,
                                                      const std::vector<grpc::Service*>& services,
                                                      const ServerLimits& limits,
                                                      const ServerTls& tls) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen address '", address, "': expected host:port"));
  }
  LogLibraryMessages();
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> credentials,
                   ServerCredentials(tls.files, tls.callers));
  grpc::EnableDefaultHealthCheckService(true);
  // gRPC's health service registers no descriptor. Reflection finds this project's copy of it,
  // which the linker must keep.
  google::protobuf::LinkMessageReflection<grpc::health::v1::HealthCheckRequest>();
  grpc::ServerBuilder builder;
  auto server = std::unique_ptr<Server>(new Server());
  if (limits.reflection) {
    server->reflection_ = AddReflection(builder);
  } else {
    RemoveReflection(builder);
  }
  builder.AddListeningPort(address, credentials, &server->port_);
  // Without this two processes can listen on one port, and each answers some of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingsEveryMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeWithinMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMaxMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.streams_max);
  builder.SetMaxReceiveMessageSize(limits.message_bytes_max);
  if (limits.memory_bytes_max > 0) {
    builder.SetResourceQuota(
        grpc::ResourceQuota("server").Resize(static_cast<size_t>(limits.memory_bytes_max)));
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || server->port_ == 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", address, ": is the port in use, or the host not this machine's?"));
  }
  server->address_ = absl::StrCat(address.substr(0, colon), ":", server->port_);
  server->SetHealth("ready", false);
  return server;
}

Server::~Server() { Shutdown(absl::ZeroDuration()); }

void Server::SetHealth(const std::string& service, bool serving) {
  if (auto* health = server_->GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(service, serving);
  }
}

void Server::Shutdown(absl::Duration grace) {
  if (stopped_ || server_ == nullptr) return;
  stopped_ = true;
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
}

}  // namespace tandem::rpc
