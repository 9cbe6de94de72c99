#include "cli/certs/authority.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

struct BioFree {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using BioPtr = std::unique_ptr<BIO, BioFree>;

BioPtr BioOf(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return size > 0 ? std::string(data, static_cast<size_t>(size)) : std::string();
}

absl::Status OpenSslError(absl::string_view what) {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return absl::InternalError(absl::StrCat(what, ": ", reason != nullptr ? reason : "no memory"));
}

// The PEM texts; empty if OpenSSL cannot make them.
CertificateAndKey PemOf(X509* certificate, EVP_PKEY* key) {
  const BioPtr first(BIO_new(BIO_s_mem())), second(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(first.get(), certificate) != 1 ||
      PEM_write_bio_PrivateKey(second.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return {};
  return {TextOf(first.get()), TextOf(second.get())};
}

bool AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  const bool added = extension != nullptr && X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

// OpenSSL reads the names as one text, in which a comma divides them.
absl::Status CheckText(absl::string_view what, const std::string& text, absl::string_view marks) {
  const bool fits = !text.empty() && std::all_of(text.begin(), text.end(), [&](unsigned char c) {
    return std::isalnum(c) != 0 || marks.find(static_cast<char>(c)) != absl::string_view::npos;
  });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " '", text, "': expected letters, digits and ", marks));
}

bool IsAddress(const std::string& name) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, name.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, name.c_str(), bytes) == 1;
}

absl::StatusOr<std::string> AlternativeNames(const CertificateSubject& subject) {
  std::vector<std::string> all;
  for (const std::string& uri : subject.uris) {
    RETURN_IF_ERROR(CheckText("the URI", uri, ":/._-"));
    all.push_back(absl::StrCat("URI:", uri));
  }
  for (const std::string& name : subject.names) {
    RETURN_IF_ERROR(CheckText("the name", name, ":._-*"));
    all.push_back(absl::StrCat(IsAddress(name) ? "IP:" : "DNS:", name));
  }
  return absl::StrJoin(all, ",");
}

}  // namespace

void Authority::Free::operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
void Authority::Free::operator()(X509* certificate) const { X509_free(certificate); }

Authority::Certificate Authority::NewCertificate(EVP_PKEY* key, const std::string& common_name,
                                                 absl::Time begin, absl::Time end) {
  Certificate certificate(X509_new());
  unsigned char serial[16];
  if (key == nullptr || certificate == nullptr || RAND_bytes(serial, sizeof(serial)) != 1)
    return nullptr;
  serial[0] = static_cast<unsigned char>((serial[0] & 0x7f) | 0x40);  // positive, and as long
  BIGNUM* number = BN_bin2bn(serial, sizeof(serial), nullptr);
  X509* made = certificate.get();
  const bool fine =
      X509_set_version(made, X509_VERSION_3) == 1 && number != nullptr &&
      BN_to_ASN1_INTEGER(number, X509_get_serialNumber(made)) != nullptr &&
      ASN1_TIME_set(X509_getm_notBefore(made), absl::ToTimeT(begin)) != nullptr &&
      ASN1_TIME_set(X509_getm_notAfter(made), absl::ToTimeT(end)) != nullptr &&
      X509_set_pubkey(made, key) == 1 &&
      X509_NAME_add_entry_by_txt(X509_get_subject_name(made), "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(common_name.c_str()), -1,
                                 -1, 0) == 1;
  BN_free(number);
  return fine ? std::move(certificate) : nullptr;
}

absl::StatusOr<Authority> Authority::Create(const std::string& common_name, absl::Time begin,
                                            absl::Time end) {
  Authority made;
  made.key_.reset(EVP_EC_gen("P-256"));
  made.certificate_ = NewCertificate(made.key_.get(), common_name, begin, end);
  X509* own = made.certificate_.get();
  if (own == nullptr || X509_set_issuer_name(own, X509_get_subject_name(own)) != 1 ||
      !AddExtension(own, own, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(own, own, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !AddExtension(own, own, NID_subject_key_identifier, "hash") ||
      X509_sign(own, made.key_.get(), EVP_sha256()) <= 0)
    return OpenSslError("cannot make an authority");
  made.pem_ = PemOf(own, made.key_.get());
  return made;
}

absl::StatusOr<Authority> Authority::Parse(const CertificateAndKey& pem) {
  Authority parsed;
  parsed.certificate_.reset(
      PEM_read_bio_X509(BioOf(pem.certificate).get(), nullptr, nullptr, nullptr));
  parsed.key_.reset(PEM_read_bio_PrivateKey(BioOf(pem.key).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (parsed.certificate_ == nullptr || parsed.key_ == nullptr)
    return absl::InvalidArgumentError("the authority's certificate or key is no PEM");
  if (X509_check_private_key(parsed.certificate_.get(), parsed.key_.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("the authority's key is not its certificate's");
  }
  parsed.pem_ = pem;
  return parsed;
}

absl::StatusOr<CertificateAndKey> Authority::Issue(const CertificateSubject& subject) const {
  ASSIGN_OR_RETURN(const std::string names, AlternativeNames(subject));
  const Key key(EVP_EC_gen("P-256"));
  const Certificate certificate =
      NewCertificate(key.get(), subject.common_name, subject.begin, subject.end);
  X509* made = certificate.get();
  X509* issuer = certificate_.get();
  if (made == nullptr || X509_set_issuer_name(made, X509_get_subject_name(issuer)) != 1 ||
      !AddExtension(made, issuer, NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(made, issuer, NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(made, issuer, NID_ext_key_usage, "serverAuth,clientAuth") ||
      !AddExtension(made, issuer, NID_authority_key_identifier, "keyid") ||
      (!names.empty() && !AddExtension(made, issuer, NID_subject_alt_name, names)) ||
      X509_sign(made, key_.get(), EVP_sha256()) <= 0)
    return OpenSslError(absl::StrCat("cannot make the certificate of ", subject.common_name));
  return PemOf(made, key.get());
}

absl::StatusOr<CertificateSummary> Summarize(const std::string& pem) {
  X509* certificate = PEM_read_bio_X509(BioOf(pem).get(), nullptr, nullptr, nullptr);
  ERR_clear_error();
  if (certificate == nullptr) return absl::InvalidArgumentError("holds no PEM certificate");
  CertificateSummary summary;
  char common_name[256] = {};
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, common_name,
                            sizeof(common_name));
  summary.common_name = common_name;
  summary.uris = rpc::UrisOf(certificate);
  summary.names = rpc::HostsOf(certificate);
  std::tm end = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) == 1)
    summary.end = absl::FromTimeT(timegm(&end));
  X509_free(certificate);
  return summary;
}

}  // namespace tandem::cli
