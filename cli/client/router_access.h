// How a command reaches a router: the flags that all client commands share.
// Thread safety: none; the main thread. Owner: the command.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "cli/client/client.h"
#include "common/config/schema.h"

namespace tandem::cli {

struct RouterAccess {
  std::string router = "127.0.0.1:50051";
  ClientOptions options;
};

// A value of --router; the error's message follows "expected ".
inline absl::Status CheckRouter(const std::string& text) {
  if (absl::StrContains(text, "://"))
    return absl::InvalidArgumentError("a port or host:port of gRPC, without http:// or the like");
  return config::CheckAddress(text);
}

// The flags router, api-key, tls-ca, tls-cert and tls-key, under the heading `group` (may be
// empty).
inline void RegisterRouterAccess(config::Schema& schema, RouterAccess& access,
                                 const std::string& group = "") {
  schema.Add("router", &access.router, "Address of a router, port or host:port.",
             {.group = group, .check = CheckRouter, .normalise = config::CompleteAddress});
  schema.Add("api-key", &access.options.api_key, "Key for routers that require one.",
             {.group = group, .secret = true});
  schema.Add("tls-ca", &access.options.tls.authorities,
             "For routers with TLS: a file of trusted certificates (PEM), or system for the "
             "machine's.",
             {.group = group});
  schema.Add("tls-cert", &access.options.tls.certificate,
             "For routers that ask for certificates: a file with this client's (PEM).",
             {.group = group});
  schema.Add("tls-key", &access.options.tls.key, "The private key of --tls-cert (PEM).",
             {.group = group});
}

// The argument REQUEST_ID. kInvalidArgument, which says where ids come from, if there is none.
inline absl::StatusOr<std::string> RequestIdNamed(const std::vector<std::string>& positionals) {
  if (!positionals.empty()) return positionals[0];
  return absl::InvalidArgumentError(
      "expected REQUEST_ID: the id of an HTTP answer, or the value of `tandem generate "
      "--request-id`");
}

inline absl::StatusOr<std::unique_ptr<Client>> Connect(const RouterAccess& access) {
  return Client::Connect(access.router, access.options);
}

}  // namespace tandem::cli
