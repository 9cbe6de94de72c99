// TLS of the ports that clients speak to: by which files a server proves who it is, and whom a
// client believes. Files are PEM, and are read again when they change, so that a certificate is
// renewed without a restart. Thread safety: functions from any thread.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace tandem::rpc {

// How often files are looked at.
inline constexpr absl::Duration kTlsFilesEvery = absl::Seconds(10);

struct TlsFiles {
  std::string certificate;  // the server's own, then those between it and its authority's
  std::string key;          // the certificate's private key, without a passphrase

  bool any() const { return !certificate.empty() || !key.empty(); }
};

struct SslContextFree {
  void operator()(ssl_ctx_st* context) const;
};
using SslContext = std::unique_ptr<ssl_ctx_st, SslContextFree>;

// A server's context: TLS 1.2 and 1.3. kInvalidArgument when a file is missing, is not PEM, or the
// key is not the certificate's; names the flag and the file.
absl::StatusOr<SslContext> LoadSslContext(const TlsFiles& files);

// A client's context, which believes servers whose certificates lead to those of the file
// `authorities`, or to the machine's where it is empty or "system". Whether a certificate is the
// server's own, by its name, is each connection's to check. Errors as ChannelCredentials.
absl::StatusOr<SslContext> LoadClientSslContext(const std::string& authorities);

// Without TLS when no file is given. Errors as LoadSslContext.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(const TlsFiles& files);

// Whom a client takes for its router.
struct TlsTrust {
  // File of the authorities' certificates that the router's must lead to, or "system" for the
  // machine's; empty = no TLS.
  std::string authorities;
  // TLS with whoever answers: for a router that the caller has started itself.
  bool anybody = false;
};

// kInvalidArgument naming a file that cannot be read or holds no certificate.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentials(const TlsTrust& trust);

}  // namespace tandem::rpc
