#include "common/rpc/tls.h"

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/read_file.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"
#include "common/telemetry/log.h"

namespace tandem::rpc {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::FileWatcherCertificateProvider;
using grpc::experimental::TlsChannelCredentialsOptions;
using grpc::experimental::TlsCustomVerificationCheckRequest;

// Of a file of certificates or with a key.
constexpr size_t kPemBytesMax = size_t{16} << 20;

unsigned ReloadSeconds() { return static_cast<unsigned>(absl::ToInt64Seconds(kTlsReloadInterval)); }

// Returns OpenSSL's last error, and clears it.
std::string LastError() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : "unknown error";
}

absl::StatusOr<std::string> ReadPem(absl::string_view flag, const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(flag, path, kPemBytesMax);
  return text.ok() ? text : absl::InvalidArgumentError(text.status().message());
}

// Why OpenSSL took nothing from a file. Of one that cannot be read, it says no more than that.
absl::Status FileError(absl::string_view flag, const std::string& path) {
  const std::string reason = LastError();
  RETURN_IF_ERROR(ReadPem(flag, path).status());
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, ": ", reason));
}

// A context for TLS 1.2 and 1.3.
absl::StatusOr<SslContext> NewSslContext(const SSL_METHOD* method) {
  ERR_clear_error();
  SslContext context(SSL_CTX_new(method));
  if (context == nullptr) return absl::InternalError(absl::StrCat("TLS: ", LastError()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  return context;
}

absl::Status UseCertificate(SSL_CTX* context, const std::string& certificate,
                            const std::string& key) {
  if (SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1)
    return FileError("tls-cert", certificate);
  if (SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1)
    return FileError("tls-key", key);
  return absl::OkStatus();
}

// OpenSSL calls this for each certificate of a chain; depth 0 is the client's own.
int CheckClient(int chain_is_good, X509_STORE_CTX* chain) {
  if (chain_is_good != 1 || X509_STORE_CTX_get_error_depth(chain) != 0) return chain_is_good;
  const absl::Status status =
      CheckPeer(ClientRule(), UrisOf(X509_STORE_CTX_get_current_cert(chain)));
  if (status.ok()) return 1;
  Log(LogLevel::kWarning, "refused an HTTP client's certificate", {{"why", status.message()}});
  X509_STORE_CTX_set_error(chain, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

absl::Status RequireClientCertificates(SSL_CTX* context, const std::string& authorities) {
  RETURN_IF_ERROR(ReadCertificates("tls-client-ca", authorities).status());
  if (SSL_CTX_load_verify_locations(context, authorities.c_str(), nullptr) != 1)
    return FileError("tls-client-ca", authorities);
  SSL_CTX_set_client_CA_list(context, SSL_load_client_CA_file(authorities.c_str()));
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, CheckClient);
  // Every connection shows its certificate: a session would outlive it.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context, 0);
  return absl::OkStatus();
}

// Ends calls of peers that break the rule, with the reason.
class CallerCheck final : public grpc::AuthMetadataProcessor {
 public:
  explicit CallerCheck(PeerRule rule) : rule_(std::move(rule)) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata&, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    return ToGrpc(CheckPeer(rule_, UrisOf(*context)));
  }

 private:
  const PeerRule rule_;
};

class AcceptAnyCertificate final : public ExternalCertificateVerifier {
 public:
  bool Verify(TlsCustomVerificationCheckRequest*, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    *status = grpc::Status::OK;
    return true;  // decided at once
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}
};

// The name that was dialled, as gRPC checks it, and the role.
class RouterByName final : public ExternalCertificateVerifier {
 public:
  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    host_.Verify(request, nullptr, status);  // decides at once
    if (!status->ok()) return true;
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names())
      uris.emplace_back(uri.data(), uri.size());
    *status = ToGrpc(CheckPeer({.roles = {PeerRole::kRouter}, .unnamed = true}, uris));
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  grpc::experimental::HostNameCertificateVerifier host_;
};

absl::Status CheckBoth(const std::string& certificate, const std::string& key) {
  if (certificate.empty() == key.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("tls-cert and tls-key: expected both or neither");
}

}  // namespace

void SslContextFree::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }

PeerRule ClientRule() { return {.roles = {PeerRole::kCli}, .unnamed = true}; }

absl::StatusOr<std::string> ReadCertificates(absl::string_view flag, const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadPem(flag, path));
  if (!absl::StrContains(text, "-----BEGIN CERTIFICATE-----")) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, " holds no PEM certificate"));
  }
  return text;
}

absl::StatusOr<SslContext> LoadSslContext(const TlsFiles& files) {
  if (files.certificate.empty() || files.key.empty()) {
    return absl::InvalidArgumentError(
        "tls-cert and tls-key: expected both or neither, and both with tls-client-ca");
  }
  ASSIGN_OR_RETURN(SslContext context, NewSslContext(TLS_server_method()));
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // Idle connections hold no buffers. A write may be partial, and its bytes may move before the
  // retry.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  RETURN_IF_ERROR(UseCertificate(context.get(), files.certificate, files.key));
  if (!files.client_authorities.empty())
    RETURN_IF_ERROR(RequireClientCertificates(context.get(), files.client_authorities));
  return context;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(const TlsFiles& files,
                                                                           const PeerRule& rule) {
  if (!files.any()) return grpc::InsecureServerCredentials();
  RETURN_IF_ERROR(LoadSslContext(files).status());
  const bool mutual = !files.client_authorities.empty();
  // gRPC's API shares ownership of the provider.
  const auto provider = std::make_shared<FileWatcherCertificateProvider>(
      files.key, files.certificate, files.client_authorities, ReloadSeconds());
  grpc::experimental::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (mutual) options.watch_root_certs();
  options.set_cert_request_type(mutual ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                       : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  auto credentials = grpc::experimental::TlsServerCredentials(options);
  if (mutual) credentials->SetAuthMetadataProcessor(std::make_shared<CallerCheck>(rule));
  return credentials;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentials(
    const TlsTrust& trust) {
  RETURN_IF_ERROR(CheckBoth(trust.certificate, trust.key));
  const bool shows = !trust.certificate.empty();
  if (!trust.skip_verification && trust.authorities.empty()) {
    if (!shows) return grpc::InsecureChannelCredentials();
    return absl::InvalidArgumentError("tls-cert: given without tls-ca, expected both");
  }
  const bool named = !trust.skip_verification && trust.authorities != "system";
  if (shows || named) RETURN_IF_ERROR(LoadClientSslContext(trust).status());
  TlsChannelCredentialsOptions options;
  if (shows || named) {
    options.set_certificate_provider(std::make_shared<FileWatcherCertificateProvider>(
        trust.key, trust.certificate, named ? trust.authorities : "", ReloadSeconds()));
  }
  if (shows) options.watch_identity_key_cert_pairs();
  if (named) options.watch_root_certs();
  options.set_verify_server_certs(!trust.skip_verification);
  options.set_check_call_host(false);  // RouterByName has checked the connection's
  options.set_certificate_verifier(trust.skip_verification
                                       ? ExternalCertificateVerifier::Create<AcceptAnyCertificate>()
                                       : ExternalCertificateVerifier::Create<RouterByName>());
  return grpc::experimental::TlsCredentials(options);
}

absl::StatusOr<SslContext> LoadClientSslContext(const TlsTrust& trust) {
  RETURN_IF_ERROR(CheckBoth(trust.certificate, trust.key));
  const bool system = trust.authorities.empty() || trust.authorities == "system";
  if (!system) RETURN_IF_ERROR(ReadCertificates("tls-ca", trust.authorities).status());
  ASSIGN_OR_RETURN(SslContext context, NewSslContext(TLS_client_method()));
  const int loaded =
      system ? SSL_CTX_set_default_verify_paths(context.get())
             : SSL_CTX_load_verify_locations(context.get(), trust.authorities.c_str(), nullptr);
  if (loaded != 1) return FileError("tls-ca", trust.authorities);
  if (!trust.certificate.empty())
    RETURN_IF_ERROR(UseCertificate(context.get(), trust.certificate, trust.key));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  return context;
}

}  // namespace tandem::rpc
