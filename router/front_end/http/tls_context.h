// Makes a TLS session for each connection of the HTTP server. It reads its files again when they
// change, so that certificates can be replaced without a restart.
// Thread safety: none. Owner: the thread that accepts connections.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls.h"

struct ssl_st;  // OpenSSL's SSL

namespace tandem::router {

struct TlsSessionFree {
  void operator()(ssl_st* session) const;
};
using TlsSession = std::unique_ptr<ssl_st, TlsSessionFree>;

class TlsContext {
 public:
  // Errors as rpc::LoadSslContext.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Load(const rpc::TlsFiles& files);

  // A session over `socket`, a non-blocking descriptor. Its first reads and writes make the
  // handshake. Null if memory is short.
  TlsSession NewSession(int socket, absl::Time now);

 private:
  using FileTime = std::filesystem::file_time_type;

  TlsContext(rpc::TlsFiles files, rpc::SslContext context);
  // Loads the files again if they changed. If that fails, the previous contents stay in use.
  void Refresh(absl::Time now);
  std::optional<std::vector<FileTime>> FileTimes() const;

  const rpc::TlsFiles files_;
  rpc::SslContext context_;
  std::optional<std::vector<FileTime>> loaded_;
  absl::Time next_look_ = absl::InfinitePast();
};

}  // namespace tandem::router
