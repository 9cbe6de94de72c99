// One client's TCP socket, plain or under TLS: who reads and writes need not know which. Never
// blocks. Thread safety: none; used within its connection's lock.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/front_end/http/tls_context.h"

namespace tandem::router {

using TcpSocket =
    boost::asio::basic_stream_socket<boost::asio::ip::tcp, boost::asio::io_context::executor_type>;

class ClientSocket {
 public:
  // `socket` is non-blocking. Under TLS if `tls`, which is a session over it, is not null.
  ClientSocket(TcpSocket socket, TlsSession tls)
      : socket_(std::move(socket)), tls_(std::move(tls)) {}

  // Calls `handler(error_code)` from the I/O thread when reading, or writing, may get further.
  template <typename Handler>
  void AsyncWaitReadable(Handler handler) {
    if (HasDecrypted()) {
      boost::asio::post(socket_.get_executor(), [handler = std::move(handler)]() mutable {
        handler(boost::system::error_code());
      });
      return;
    }
    socket_.async_wait(read_awaits_write_ ? TcpSocket::wait_write : TcpSocket::wait_read,
                       std::move(handler));
  }
  template <typename Handler>
  void AsyncWaitWritable(Handler handler) {
    socket_.async_wait(write_awaits_read_ ? TcpSocket::wait_read : TcpSocket::wait_write,
                       std::move(handler));
  }

  // The bytes read into [data, data + size). `error`: would_block when none are there yet, eof at
  // the end of the client's stream, anything else when the connection is of no more use. `waited`:
  // since the kernel received the last of these bytes; zero where it does not say, as under TLS.
  size_t ReadSome(char* data, size_t size, boost::system::error_code& error,
                  absl::Duration& waited);
  // The bytes taken of `bytes`, which may be fewer than all. `error`: would_block when none are
  // taken for now; the next call must bring the same bytes again, and may add more behind them.
  size_t WriteSome(absl::string_view bytes, boost::system::error_code& error);
  // Tells the client that nothing follows.
  void ShutdownSend();
  void Close();

 private:
  bool HasDecrypted() const;
  size_t ReadTls(char* data, size_t size, boost::system::error_code& error);
  void EndTls();
  // What became of an SSL call that returned `result`.
  boost::system::error_code TlsError(int result, bool& awaits_read, bool& awaits_write);

  TcpSocket socket_;
  TlsSession tls_;
  bool read_awaits_write_ = false, write_awaits_read_ = false;
  bool tls_broken_ = false;  // nothing may be sent under TLS any more
};

}  // namespace tandem::router
