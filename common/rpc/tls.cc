#include "common/rpc/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <fstream>
#include <functional>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::rpc {
namespace {

// Returns OpenSSL's last error, and clears it.
std::string LastError() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : "unknown error";
}

absl::Status FileError(absl::string_view flag, const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, ": ", LastError()));
}

absl::StatusOr<std::string> ReadCertificates(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) return absl::InvalidArgumentError(absl::StrCat("tls-ca: cannot read ", path));
  if (!absl::StrContains(text.str(), "-----BEGIN CERTIFICATE-----")) {
    return absl::InvalidArgumentError(absl::StrCat("tls-ca: ", path, " holds no PEM certificate"));
  }
  return std::move(text).str();
}

// A context for TLS 1.2 and 1.3.
absl::StatusOr<SslContext> NewSslContext(const SSL_METHOD* method) {
  ERR_clear_error();
  SslContext context(SSL_CTX_new(method));
  if (context == nullptr) return absl::InternalError(absl::StrCat("TLS: ", LastError()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  return context;
}

class AcceptAnyCertificate final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest*,
              std::function<void(grpc::Status)>, grpc::Status* status) override {
    *status = grpc::Status::OK;
    return true;  // decided at once
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}
};

}  // namespace

void SslContextFree::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }

absl::StatusOr<SslContext> LoadSslContext(const TlsFiles& files) {
  if (files.certificate.empty() || files.key.empty()) {
    return absl::InvalidArgumentError("tls-cert and tls-key: expected both or neither");
  }
  ASSIGN_OR_RETURN(SslContext context, NewSslContext(TLS_server_method()));
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // Idle connections hold no buffers. A write may be partial, and its bytes may move before the
  // retry.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1) {
    return FileError("tls-cert", files.certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return FileError("tls-key", files.key);
  }
  return context;
}

absl::StatusOr<SslContext> LoadClientSslContext(const std::string& authorities) {
  const bool system = authorities.empty() || authorities == "system";
  if (!system) RETURN_IF_ERROR(ReadCertificates(authorities).status());
  ASSIGN_OR_RETURN(SslContext context, NewSslContext(TLS_client_method()));
  const int loaded =
      system ? SSL_CTX_set_default_verify_paths(context.get())
             : SSL_CTX_load_verify_locations(context.get(), authorities.c_str(), nullptr);
  if (loaded != 1) return FileError("tls-ca", authorities);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  return context;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(const TlsFiles& files) {
  if (!files.any()) return grpc::InsecureServerCredentials();
  RETURN_IF_ERROR(LoadSslContext(files).status());
  // gRPC's API shares ownership of the provider.
  const auto provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.certificate,
      static_cast<unsigned>(absl::ToInt64Seconds(kTlsReloadInterval)));
  grpc::experimental::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  return grpc::experimental::TlsServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentials(
    const TlsTrust& trust) {
  if (trust.anybody) {
    grpc::experimental::TlsChannelCredentialsOptions options;
    options.set_verify_server_certs(false);
    options.set_check_call_host(false);
    options.set_certificate_verifier(
        grpc::experimental::ExternalCertificateVerifier::Create<AcceptAnyCertificate>());
    return grpc::experimental::TlsCredentials(options);
  }
  if (trust.authorities.empty()) return grpc::InsecureChannelCredentials();
  if (trust.authorities == "system") return grpc::SslCredentials({});
  ASSIGN_OR_RETURN(std::string certificates, ReadCertificates(trust.authorities));
  return grpc::SslCredentials({.pem_root_certs = std::move(certificates)});
}

}  // namespace tandem::rpc
