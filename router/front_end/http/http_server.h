// Serves HTTP/1.1: accepts, spreads connections over I/O threads of its own, and hands requests to
// a handler. Thread safety: public methods from any thread; Start and the destructor by the owner.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "router/front_end/http/http_connection.h"

namespace tandem::router {

struct HttpServerOptions {
  std::string address = "127.0.0.1:8000";  // host:port; port 0 picks one
  int threads = 2;
  int64_t connections_max = 32768;  // more are closed at once
  ConnectionLimits limits;
  rpc::TlsFiles tls;  // none: plain HTTP
};

class HttpServer {
 public:
  // kInvalidArgument for an address that is none, and as TlsContext::Load; kUnavailable naming an
  // address that cannot be bound.
  // `hooks.closed` is the server's own.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           HttpConnection::Hooks hooks);
  // Stops.
  virtual ~HttpServer() = default;

  // "host:port" with the port bound.
  virtual const std::string& address() const = 0;
  // Accepts no more; connections end with the answer they are at.
  virtual void BeginDrain() = 0;
  // Waits until no connection is left, at most `timeout`.
  virtual void AwaitIdle(absl::Duration timeout) = 0;
  // Closes all connections (their answers are told that the client is gone) and ends the threads.
  // Idempotent. Whoever still holds an exchange may use it in vain until the server is destroyed.
  virtual void Stop() = 0;
  virtual int64_t connections() const = 0;
};

// "8000", ":8000", "host:8000" or "[::1]:8000" as host:port (host defaults to 127.0.0.1).
// kInvalidArgument for anything else.
absl::StatusOr<std::string> ParseHttpAddress(const std::string& text);

}  // namespace tandem::router
