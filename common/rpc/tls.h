// TLS for the ports that clients use: which certificate a server shows, and which servers a client
// trusts. Files are PEM. Servers reload them when they change, so that an operator can renew a
// certificate without a restart.
// Thread safety: any thread may call the functions.
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

// How often a server looks for changed files.
inline constexpr absl::Duration kTlsReloadInterval = absl::Seconds(10);

struct TlsFiles {
  std::string certificate;  // path: the server's certificate, then the intermediate ones
  std::string key;          // path: the certificate's private key, without a passphrase

  bool any() const { return !certificate.empty() || !key.empty(); }
};

struct SslContextFree {
  void operator()(ssl_ctx_st* context) const;
};
using SslContext = std::unique_ptr<ssl_ctx_st, SslContextFree>;

// A server's context for TLS 1.2 and 1.3. Errors: kInvalidArgument, which names the flag and the
// file, when a file is missing or is not PEM, or when the key does not match the certificate.
absl::StatusOr<SslContext> LoadSslContext(const TlsFiles& files);

// A client's context. It trusts certificates that an authority in the file `authorities` has
// signed, or one of the machine's authorities when that is empty or "system". Each connection must
// check itself that the certificate names the server. Errors: those of ChannelCredentials.
absl::StatusOr<SslContext> LoadClientSslContext(const std::string& authorities);

// Credentials without TLS when `files` names none. Errors: those of LoadSslContext.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(const TlsFiles& files);

// Which servers a client trusts.
struct TlsTrust {
  // The file of the authorities' certificates, or "system" for the machine's authorities. Empty: no
  // TLS.
  std::string authorities;
  // TLS without a check of the certificate, for a router that the caller has started itself.
  bool anybody = false;
};

// Errors: kInvalidArgument names a file that cannot be read or holds no certificate.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentials(const TlsTrust& trust);

}  // namespace tandem::rpc
