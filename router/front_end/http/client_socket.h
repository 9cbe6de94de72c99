// One client's TCP socket, plain or under TLS. Its user need not know which. It never blocks.
// Thread safety: none; used within the lock of its connection's strand. Owner: the HttpConnection.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/front_end/http/tls_context.h"

namespace tandem::router {

using TcpSocket =
    boost::asio::basic_stream_socket<boost::asio::ip::tcp, boost::asio::io_context::executor_type>;

class ClientSocket {
 public:
  // REQUIRES: `socket` is non-blocking. `tls`: a TLS session over `socket`, or null for plain TCP.
  ClientSocket(TcpSocket socket, TlsSession tls)
      : socket_(std::move(socket)), tls_(std::move(tls)) {}

  // Calls `handler(error_code)` on the I/O thread when reading (or writing) may make progress.
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

  // Reads into [data, data + size) and returns the number of bytes. `error`: would_block if there
  // are none yet, eof at the end of the client's stream, anything else if the connection is broken.
  // `waited`: the time since the kernel received the last of these bytes; zero if it does not say,
  // as under TLS.
  size_t ReadSome(char* data, size_t size, boost::system::error_code& error,
                  absl::Duration& waited);
  // Writes a prefix of `bytes` and returns its length. `error`: would_block if nothing was written;
  // the next call must bring the same bytes again, and may add more after them.
  size_t WriteSome(absl::string_view bytes, boost::system::error_code& error);
  // Whether bytes of the client wait to be read.
  bool HoldsBytes() const;
  // The IP address of the other end; empty when the connection is gone.
  std::string PeerAddress() const;
  // Tells the client that nothing follows.
  void ShutdownSend();
  void Close();

 private:
  bool HasDecrypted() const;
  size_t ReadTls(char* data, size_t size, boost::system::error_code& error);
  void EndTls();
  // The error code of an SSL call that returned `result`.
  boost::system::error_code TlsError(int result, bool& awaits_read, bool& awaits_write);

  TcpSocket socket_;
  TlsSession tls_;
  bool read_awaits_write_ = false, write_awaits_read_ = false;
  bool tls_broken_ = false;  // nothing may be sent under TLS any more
};

}  // namespace tandem::router
