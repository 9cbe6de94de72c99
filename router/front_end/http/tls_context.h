// Makes a TLS session for each connection of the HTTP server, from files that it reads again when
// they change. Thread safety: none; the thread that accepts has it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

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

  // A session over `socket`, a descriptor that does not block; its handshake is part of its first
  // reads and writes. Null when memory is short.
  TlsSession NewSession(int socket, absl::Time now);

 private:
  using FileTime = std::filesystem::file_time_type;

  TlsContext(rpc::TlsFiles files, rpc::SslContext context);
  // What changed files hold is used from now on; while it cannot be, what they held before is.
  void Refresh(absl::Time now);
  std::optional<std::pair<FileTime, FileTime>> FileTimes() const;

  const rpc::TlsFiles files_;
  rpc::SslContext context_;
  std::optional<std::pair<FileTime, FileTime>> loaded_;
  absl::Time next_look_ = absl::InfinitePast();
};

}  // namespace tandem::router
