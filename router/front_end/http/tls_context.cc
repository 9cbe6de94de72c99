#include "router/front_end/http/tls_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <system_error>

#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"

namespace tandem::router {
namespace {

// A client that offers protocols must offer ours (RFC 7301: names with their lengths before them).
int ChooseProtocol(SSL*, const unsigned char** out, unsigned char* out_size,
                   const unsigned char* offered, unsigned int offered_size, void*) {
  static constexpr unsigned char kOurs[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  const int found =
      SSL_select_next_proto(&chosen, out_size, kOurs, sizeof(kOurs) - 1, offered, offered_size);
  *out = chosen;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

absl::StatusOr<rpc::SslContext> LoadContext(const rpc::TlsFiles& files) {
  ASSIGN_OR_RETURN(rpc::SslContext context, rpc::LoadSslContext(files));
  SSL_CTX_set_alpn_select_cb(context.get(), ChooseProtocol, nullptr);
  return context;
}

}  // namespace

void TlsSessionFree::operator()(ssl_st* session) const { SSL_free(session); }

TlsContext::TlsContext(rpc::TlsFiles files, rpc::SslContext context)
    : files_(std::move(files)), context_(std::move(context)), loaded_(FileTimes()) {}

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Load(const rpc::TlsFiles& files) {
  ASSIGN_OR_RETURN(rpc::SslContext context, LoadContext(files));
  return std::unique_ptr<TlsContext>(new TlsContext(files, std::move(context)));
}

std::optional<std::vector<TlsContext::FileTime>> TlsContext::FileTimes() const {
  std::vector<FileTime> times;
  for (const std::string* path : {&files_.certificate, &files_.key, &files_.client_authorities}) {
    if (path->empty()) continue;
    std::error_code error;
    times.push_back(std::filesystem::last_write_time(*path, error));
    if (error) return std::nullopt;
  }
  return times;
}

void TlsContext::Refresh(absl::Time now) {
  if (now < next_look_) return;
  next_look_ = now + rpc::kTlsReloadInterval;
  const auto times = FileTimes();
  if (!times.has_value() || times == loaded_) return;
  absl::StatusOr<rpc::SslContext> fresh = LoadContext(files_);
  if (!fresh.ok()) {
    Log(LogLevel::kWarning, "cannot use the renewed TLS files; the old ones stay in use",
        {{"why", fresh.status().message()}});
    return;
  }
  context_ = *std::move(fresh);
  loaded_ = times;
  Log(LogLevel::kInfo, "read the renewed TLS files", {{"certificate", files_.certificate}});
}

TlsSession TlsContext::NewSession(int socket, absl::Time now) {
  Refresh(now);
  ERR_clear_error();
  TlsSession session(SSL_new(context_.get()));
  if (session == nullptr || SSL_set_fd(session.get(), socket) != 1) return nullptr;
  SSL_set_accept_state(session.get());
  return session;
}

}  // namespace tandem::router
