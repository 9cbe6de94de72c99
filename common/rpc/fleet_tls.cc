#include "common/rpc/fleet_tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <cstdio>
#include <ctime>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"
#include "common/telemetry/log.h"

namespace tandem::rpc {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::TlsCustomVerificationCheckRequest;

constexpr absl::Duration kLookEvery = absl::Minutes(1);
constexpr absl::Duration kLogEvery = absl::Hours(1);

struct X509Free {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
struct ChainFree {
  void operator()(X509_STORE_CTX* chain) const { X509_STORE_CTX_free(chain); }
};

std::unique_ptr<X509, X509Free> ReadFirst(const std::string& path) {
  FILE* file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return nullptr;
  std::unique_ptr<X509, X509Free> certificate(PEM_read_X509(file, nullptr, nullptr, nullptr));
  std::fclose(file);
  return certificate;
}

std::optional<absl::Time> TimeOf(const ASN1_TIME* time) {
  std::tm broken_down = {};
  if (ASN1_TIME_to_tm(time, &broken_down) != 1) return std::nullopt;
  return absl::FromTimeT(timegm(&broken_down));
}

absl::Status FolderError(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("fleet-tls: ", path, ": ", why));
}

// Whether the authorities that this process trusts would take its own certificate. What they refuse
// its peers refuse, with less to say about it.
absl::Status CheckOwnChain(SSL_CTX* context, const TlsFiles& files) {
  const std::unique_ptr<X509_STORE_CTX, ChainFree> chain(X509_STORE_CTX_new());
  STACK_OF(X509)* intermediate = nullptr;
  SSL_CTX_get0_chain_certs(context, &intermediate);
  if (chain == nullptr || X509_STORE_CTX_init(chain.get(), SSL_CTX_get_cert_store(context),
                                              SSL_CTX_get0_certificate(context), intermediate) != 1)
    return absl::InternalError("fleet-tls: no memory to check the certificate");
  if (X509_verify_cert(chain.get()) == 1) return absl::OkStatus();
  return FolderError(
      files.certificate,
      absl::StrCat("not valid under ", files.client_authorities, ": ",
                   X509_verify_cert_error_string(X509_STORE_CTX_get_error(chain.get()))));
}

class RouterByRole final : public ExternalCertificateVerifier {
 public:
  explicit RouterByRole(std::string fleet)
      : rule_{.fleet = std::move(fleet), .roles = {PeerRole::kRouter}} {}
  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names())
      uris.emplace_back(uri.data(), uri.size());
    *status = ToGrpc(CheckPeer(rule_, uris));
    return true;  // decided at once
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  const PeerRule rule_;
};

}  // namespace

absl::StatusOr<FleetTls> FleetTls::Load(const std::string& folder, PeerRole own) {
  FleetTls tls;
  tls.files_ = {.certificate = absl::StrCat(folder, "/tls.crt"),
                .key = absl::StrCat(folder, "/tls.key"),
                .client_authorities = absl::StrCat(folder, "/ca.crt")};
  const auto context = LoadSslContext(tls.files_);
  if (!context.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fleet-tls: ", folder, ": ", context.status().message()));
  }
  const auto identity = IdentityOf(UrisOf(SSL_CTX_get0_certificate(context->get())));
  if (!identity.ok()) return FolderError(tls.files_.certificate, identity.status().message());
  if (identity->role != own) {
    return FolderError(tls.files_.certificate,
                       absl::StrCat("expected the role ", RoleName(own), ", found the role ",
                                    RoleName(identity->role)));
  }
  tls.identity_ = *identity;
  RETURN_IF_ERROR(CheckOwnChain(context->get(), tls.files_));
  return tls;
}

PeerRule FleetTls::NodeRule() const {
  return {.fleet = identity_.fleet, .roles = {PeerRole::kPrefill, PeerRole::kDecode}};
}

std::shared_ptr<grpc::ChannelCredentials> FleetTls::RouterCredentials() const {
  grpc::experimental::TlsChannelCredentialsOptions options;
  // gRPC's API shares ownership of the provider.
  options.set_certificate_provider(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          files_.key, files_.certificate, files_.client_authorities,
          static_cast<unsigned>(absl::ToInt64Seconds(kTlsReloadInterval))));
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      ExternalCertificateVerifier::Create<RouterByRole>(identity_.fleet));
  return grpc::experimental::TlsCredentials(options);
}

void CertificateWatch::OnTick(absl::Time now) {
  if (path_.empty() || now < next_look_) return;
  next_look_ = now + kLookEvery;
  const auto certificate = ReadFirst(path_);
  if (certificate == nullptr || now < next_log_) return;
  const auto begin = TimeOf(X509_get0_notBefore(certificate.get()));
  const auto end = TimeOf(X509_get0_notAfter(certificate.get()));
  if (!begin.has_value() || !end.has_value() || now < *end - (*end - *begin) / 10) return;
  next_log_ = now + kLogEvery;
  Log(now < *end ? LogLevel::kWarning : LogLevel::kError,
      now < *end ? "a certificate expires soon" : "a certificate has expired",
      {{"file", path_}, {"at", absl::FormatTime(*end, absl::UTCTimeZone())}});
}

}  // namespace tandem::rpc
