// Who a certificate says that a process is. Its subject alternative names contain one URI of the
// form
//   spiffe://FLEET/tandem/ROLE
// FLEET is a SPIFFE trust domain, with path segments after it where one domain has several fleets.
// ROLE is router, prefill, decode or cli. Peers of one fleet have equal FLEETs. Other names of the
// certificate do not matter here.
// Thread safety: values and pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

typedef struct x509_st X509;  // OpenSSL's

namespace grpc {
class AuthContext;
}

namespace tandem::rpc {

enum class PeerRole { kRouter, kPrefill, kDecode, kCli };

// "router", "prefill", "decode" or "cli".
absl::string_view RoleName(PeerRole role);

struct PeerIdentity {
  std::string fleet;
  PeerRole role = PeerRole::kCli;

  // "spiffe://FLEET/tandem/ROLE".
  std::string uri() const;
};

// Which peers a port serves, or which servers a client accepts.
struct PeerRule {
  std::string fleet;  // empty: any
  std::vector<PeerRole> roles;
  // Certificates that name no role pass too: their authority alone decides.
  bool unnamed = false;
};

// The identity among a certificate's URIs. kPermissionDenied when there is none or more than one.
absl::StatusOr<PeerIdentity> IdentityOf(const std::vector<std::string>& uris);
// kPermissionDenied, which names the expected and the found role or fleet, when the peer with these
// URIs breaks the rule.
absl::Status CheckPeer(const PeerRule& rule, const std::vector<std::string>& uris);

// A certificate's URIs; its DNS names and addresses; the URIs of the one that a gRPC peer has
// shown.
std::vector<std::string> UrisOf(X509* certificate);
std::vector<std::string> HostsOf(X509* certificate);
std::vector<std::string> UrisOf(const grpc::AuthContext& context);

}  // namespace tandem::rpc
