// TLS: which certificate a server shows and which clients it takes, which servers a client trusts
// and which certificate it shows. Files are PEM. Servers reload them when they change, so that an
// operator can renew a certificate without a restart. common/rpc/fleet_tls.h has the fleet's.
// Thread safety: any thread may call the functions.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/peer_identity.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace tandem::rpc {

// How often a server looks for changed files.
inline constexpr absl::Duration kTlsReloadInterval = absl::Seconds(10);

struct TlsFiles {
  std::string certificate;  // path: the server's certificate, then the intermediate ones
  std::string key;          // path: the certificate's private key, without a passphrase
  // path: the authorities that must have signed a client's certificate; empty: clients show none
  std::string client_authorities;

  bool any() const { return !certificate.empty() || !key.empty() || !client_authorities.empty(); }
};

// Whom the ports for clients serve where clients show certificates: the fleet's own processes have
// no business there.
PeerRule ClientRule();

struct SslContextFree {
  void operator()(ssl_ctx_st* context) const;
};
using SslContext = std::unique_ptr<ssl_ctx_st, SslContextFree>;

// A server's context for TLS 1.2 and 1.3. With client_authorities it ends handshakes without a
// certificate that they signed, or with one that breaks ClientRule, and logs the latter. Errors:
// kInvalidArgument, which names the flag and the file, when a file is missing or is not PEM, or
// when the key does not match the certificate.
absl::StatusOr<SslContext> LoadSslContext(const TlsFiles& files);

// Credentials without TLS when `files` names none. With client_authorities, each call whose caller
// breaks `rule` ends with CheckPeer's error. Errors: those of LoadSslContext.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(const TlsFiles& files,
                                                                           const PeerRule& rule);

// Which servers a client trusts, and what it shows them.
struct TlsTrust {
  // The file of the authorities' certificates, or "system" for the machine's authorities. Empty: no
  // TLS.
  std::string authorities;
  // The client's own certificate and its key (PEM files); empty: it shows none.
  std::string certificate, key;
  // TLS without a check of the certificate, for a router that the caller has started itself.
  bool skip_verification = false;
};

// The server's certificate must name the host that was dialled, and no other role than router.
// Errors: kInvalidArgument names a file that cannot be read or used.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentials(const TlsTrust& trust);

// A client's context, the machine's authorities when `trust` names none. Each connection must
// check itself that the certificate names the server. Errors: those of ChannelCredentials.
absl::StatusOr<SslContext> LoadClientSslContext(const TlsTrust& trust);

// Reads a PEM file of certificates. Errors: kInvalidArgument, which names `flag` and the file.
absl::StatusOr<std::string> ReadCertificates(absl::string_view flag, const std::string& path);

}  // namespace tandem::rpc
