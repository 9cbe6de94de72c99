// A small certificate authority, for `tandem certs` and for tests: it signs certificates of P-256
// keys. Where an organisation has an authority of its own, Tandem needs none of this.
// Thread safety: const methods from any thread. Owner: the command.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/peer_identity.h"

typedef struct evp_pkey_st EVP_PKEY;  // OpenSSL's

namespace tandem::cli {

// A certificate and its private key, as PEM texts.
struct CertificateAndKey {
  std::string certificate, key;
};

// What a certificate says.
struct CertificateSubject {
  std::string common_name;
  std::vector<std::string> uris;
  std::vector<std::string> names;  // of hosts: DNS names and IP addresses
  absl::Time begin, end;
};

class Authority {
 public:
  // A new authority with a key of its own. Errors: kInternal with OpenSSL's reason.
  static absl::StatusOr<Authority> Create(const std::string& common_name, absl::Time begin,
                                          absl::Time end);
  // Errors: kInvalidArgument when the texts are no PEM, or the key is not the certificate's.
  static absl::StatusOr<Authority> Parse(const CertificateAndKey& pem);

  // A new key and a certificate of it, for servers and clients. Errors: kInvalidArgument, which
  // names it, for a URI or a name with characters that do not belong there.
  absl::StatusOr<CertificateAndKey> Issue(const CertificateSubject& subject) const;

  // Its own certificate and key.
  const CertificateAndKey& pem() const { return pem_; }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const;
    void operator()(X509* certificate) const;
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  // An unsigned certificate of `key`; null if OpenSSL cannot make it.
  static Certificate NewCertificate(EVP_PKEY* key, const std::string& common_name, absl::Time begin,
                                    absl::Time end);

  Key key_;
  Certificate certificate_;
  CertificateAndKey pem_;
};

// What a certificate of a PEM file says, for `tandem certs list`.
struct CertificateSummary {
  std::string common_name;
  std::vector<std::string> uris, names;
  absl::Time end;
};
// Errors: kInvalidArgument when `pem` holds no certificate.
absl::StatusOr<CertificateSummary> Summarize(const std::string& pem);

}  // namespace tandem::cli
