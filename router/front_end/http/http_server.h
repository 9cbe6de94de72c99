// Serves HTTP/1.1. It accepts connections, spreads them over its own I/O threads, and gives
// requests to a handler.
// Thread safety: public methods from any thread; the owner alone starts and destroys it. The
// handler and the hooks run on the I/O threads.
// Owner: HttpApi.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "router/front_end/http/http_connection.h"

namespace tandem::router {

struct HttpServerOptions {
  std::string address = "127.0.0.1:8000";  // host:port; port 0: the kernel picks one
  int threads = 2;
  int64_t connections_max = 32768;  // more are closed at once
  ConnectionLimits limits;
  // Bytes of requests that have not arrived whole and of answers that are not read, of all
  // connections together; see BufferBudget.
  int64_t buffer_bytes_max = int64_t{512} << 20;
  rpc::TlsFiles tls;  // none: plain HTTP
};

class HttpServer {
 public:
  // kInvalidArgument for a malformed address, and as TlsContext::Load; kUnavailable naming an
  // address that cannot be bound. The server sets `hooks.closed` itself. Connections wait in the
  // kernel until Run.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const HttpServerOptions& options,
                                                            HttpConnection::Hooks hooks);
  // Listen and Run.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           HttpConnection::Hooks hooks);
  // Calls Stop.
  virtual ~HttpServer() = default;

  // Starts the I/O threads, which serve. REQUIRES: called once, by the owner, before Stop.
  virtual void Run() = 0;
  // "host:port" with the port bound.
  virtual const std::string& address() const = 0;
  // Each connection, now open or accepted later, closes after its current answer; idle ones close
  // now.
  virtual void EndKeepAlive() = 0;
  // The same, and accepts no more connections.
  virtual void BeginDrain() = 0;
  // Waits until no connection is left, at most `timeout`.
  virtual void AwaitIdle(absl::Duration timeout) = 0;
  // Closes all connections, tells their answers that the client is gone, and ends the threads.
  // Idempotent. An exchange stays valid until the server is destroyed, but its calls do nothing.
  virtual void Stop() = 0;
  virtual int64_t connections() const = 0;
  virtual const BufferBudget& buffers() const = 0;
};

// "8000", ":8000", "host:8000" or "[::1]:8000" as host:port (host defaults to 127.0.0.1).
// kInvalidArgument for anything else.
absl::StatusOr<std::string> ParseHttpAddress(const std::string& text);

}  // namespace tandem::router
