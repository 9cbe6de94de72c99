// Like http_client.h, with TLS.
//   const Certificate certificate(folder);  // a self-signed certificate for 127.0.0.1
//   HttpsSocket socket(address, certificate.path());
// Thread safety: none.
#pragma once

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <filesystem>
#include <memory>
#include <string>

#include "common/base/check.h"
#include "tests/testing/http_client.h"

namespace tandem::testing {

// A key and a self-signed certificate for 127.0.0.1, written into `folder`.
class Certificate {
 public:
  explicit Certificate(const std::filesystem::path& folder, const std::string& name = "tls",
                       int serial = 1)
      : path_(folder / (name + ".crt")), key_path_(folder / (name + ".key")) {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    TANDEM_CHECK(key != nullptr && certificate != nullptr);
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 86400);
    X509_set_pubkey(certificate, key);
    X509_NAME* subject = X509_get_subject_name(certificate);
    const auto* common_name = reinterpret_cast<const unsigned char*>("test router");
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, common_name, -1, -1, 0);
    X509_set_issuer_name(certificate, subject);
    for (const auto& [kind, value] : {std::pair(NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost"),
                                      std::pair(NID_basic_constraints, "critical,CA:TRUE")}) {
      X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value);
      TANDEM_CHECK(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
      X509_EXTENSION_free(extension);
    }
    TANDEM_CHECK(X509_sign(certificate, key, EVP_sha256()) > 0);
    FILE* out = std::fopen(path_.c_str(), "w");
    TANDEM_CHECK(out != nullptr && PEM_write_X509(out, certificate) == 1);
    std::fclose(out);
    out = std::fopen(key_path_.c_str(), "w");
    TANDEM_CHECK(out != nullptr &&
                 PEM_write_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
    std::fclose(out);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }

  std::string path() const { return path_.string(); }
  std::string key_path() const { return key_path_.string(); }

 private:
  std::filesystem::path path_, key_path_;
};

class HttpsSocket final : public HttpSocket {
 public:
  // `authority`: the file of the authority's certificate. REQUIRES: it has signed the server's.
  // `own`: a folder with the client's tls.crt and tls.key; empty: it shows no certificate.
  HttpsSocket(const std::string& address, const std::string& authority, const std::string& own = "")
      : HttpSocket(address), context_(SSL_CTX_new(TLS_client_method())) {
    if (!own.empty()) {
      const std::string certificate = own + "/tls.crt", key = own + "/tls.key";
      TANDEM_CHECK(SSL_CTX_use_certificate_chain_file(context_.get(), certificate.c_str()) == 1 &&
                   SSL_CTX_use_PrivateKey_file(context_.get(), key.c_str(), SSL_FILETYPE_PEM) == 1);
    }
    TANDEM_CHECK(SSL_CTX_load_verify_file(context_.get(), authority.c_str()) == 1);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    ssl_.reset(SSL_new(context_.get()));
    const unsigned char protocols[] = "\x02h2\x08http/1.1";
    SSL_set_alpn_protos(ssl_.get(), protocols, sizeof protocols - 1);
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), "127.0.0.1");
    SSL_set_fd(ssl_.get(), fd());
    TANDEM_CHECK(SSL_connect(ssl_.get()) == 1, ERR_reason_error_string(ERR_peek_error()) != nullptr
                                                   ? ERR_reason_error_string(ERR_peek_error())
                                                   : "no handshake");
  }

  SSL* ssl() const { return ssl_.get(); }
  std::string protocol() const {
    const unsigned char* name = nullptr;
    unsigned int size = 0;
    SSL_get0_alpn_selected(ssl_.get(), &name, &size);
    return std::string(reinterpret_cast<const char*>(name), size);
  }

 protected:
  ssize_t SendBytes(const char* bytes, size_t size) override {
    return SSL_write(ssl_.get(), bytes, static_cast<int>(size));
  }
  ssize_t ReceiveBytes(char* bytes, size_t size) override {
    return SSL_read(ssl_.get(), bytes, static_cast<int>(size));
  }
  bool AwaitBytes(int timeout_ms) override {
    return SSL_pending(ssl_.get()) > 0 || HttpSocket::AwaitBytes(timeout_ms);
  }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> ssl_;
};

}  // namespace tandem::testing
