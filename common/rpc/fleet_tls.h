// TLS between the routers and the nodes of a fleet. Both sides show certificates, which name their
// roles (common/rpc/peer_identity.h). A process's files lie in one folder, with the names that
// cert-manager and `tandem certs` give them; they are read again when they change.
//   tls.crt   the process's certificate, then the intermediate ones
//   tls.key   its private key, without a passphrase
//   ca.crt    the authorities that must have signed the peers' certificates
// Host names do not matter: each router of a fleet is trusted as any other, wherever it is.
// Thread safety: FleetTls is immutable; CertificateWatch belongs to one thread.
// Owner: a router's or a node's main object.
#pragma once

#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls.h"

namespace tandem::rpc {

class FleetTls {
 public:
  // Errors: kInvalidArgument, which names the folder's file, when one cannot be used, when the
  // certificate has another role than `own`, has expired, or is not signed by ca.crt.
  static absl::StatusOr<FleetTls> Load(const std::string& folder, PeerRole own);

  // Whose own role and fleet these are.
  const PeerIdentity& identity() const { return identity_; }
  const TlsFiles& files() const { return files_; }
  // Of a router's port for nodes: prefill and decode nodes of this fleet.
  PeerRule NodeRule() const;
  // For dialling a router: connects to peers that are routers of this fleet, and to no others.
  std::shared_ptr<grpc::ChannelCredentials> RouterCredentials() const;

 private:
  TlsFiles files_;
  PeerIdentity identity_;
};

// Warns when a certificate is about to expire: the process goes on, and new connections will fail.
class CertificateWatch {
 public:
  // `path`: a PEM file; empty: nothing is watched.
  explicit CertificateWatch(std::string path) : path_(std::move(path)) {}
  // Looks each minute, and logs each hour while less than a tenth of the time from the
  // certificate's beginning to its end is left. Call it every few seconds.
  void OnTick(absl::Time now);

 private:
  const std::string path_;
  absl::Time next_look_ = absl::InfinitePast(), next_log_ = absl::InfinitePast();
};

}  // namespace tandem::rpc
