#include "router/front_end/http/client_socket.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <limits>

#include "router/front_end/http/stamped_read.h"

namespace tandem::router {
namespace {

using boost::system::error_code;

constexpr absl::string_view kExpectsTls =
    "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    "Content-Length: 44\r\n\r\nThis port speaks TLS: ask by https, not http";

int Bounded(size_t size) {
  return static_cast<int>(std::min<size_t>(size, std::numeric_limits<int>::max()));
}

}  // namespace

size_t ClientSocket::ReadSome(char* data, size_t size, error_code& error, absl::Duration& waited) {
  waited = absl::ZeroDuration();
  if (tls_ != nullptr) return ReadTls(data, size, error);
  const StampedRead read = ReadStamped(socket_.native_handle(), data, size);
  if (read.got > 0) {
    waited = read.waited;
    return static_cast<size_t>(read.got);
  }
  if (read.got == 0) {
    error = boost::asio::error::eof;
  } else if (errno == EAGAIN || errno == EINTR) {
    error = boost::asio::error::would_block;
  } else {
    error = error_code(errno, boost::system::system_category());
  }
  return 0;
}

// Record by record (16 KiB at most) until there is no more: what is decrypted already makes no
// socket readable.
size_t ClientSocket::ReadTls(char* data, size_t size, error_code& error) {
  size_t got = 0;
  while (got < size) {
    ERR_clear_error();
    const int read = SSL_read(tls_.get(), data + got, Bounded(size - got));
    if (read > 0) {
      read_awaits_write_ = false;
      got += static_cast<size_t>(read);
      continue;
    }
    bool awaits_read = false;
    error = TlsError(read, awaits_read, read_awaits_write_);
    if (got > 0) error = {};  // told with the next call, if it is not about waiting
    break;
  }
  return got;
}

size_t ClientSocket::WriteSome(absl::string_view bytes, error_code& error) {
  if (tls_ == nullptr)
    return socket_.write_some(boost::asio::buffer(bytes.data(), bytes.size()), error);
  ERR_clear_error();
  const int written = SSL_write(tls_.get(), bytes.data(), Bounded(bytes.size()));
  if (written > 0) {
    write_awaits_read_ = false;
    return static_cast<size_t>(written);
  }
  bool awaits_write = false;
  error = TlsError(written, write_awaits_read_, awaits_write);
  return 0;
}

error_code ClientSocket::TlsError(int result, bool& awaits_read, bool& awaits_write) {
  const int kind = SSL_get_error(tls_.get(), result);
  awaits_read = kind == SSL_ERROR_WANT_READ;
  awaits_write = kind == SSL_ERROR_WANT_WRITE;
  if (awaits_read || awaits_write) return boost::asio::error::would_block;
  if (kind == SSL_ERROR_ZERO_RETURN) return boost::asio::error::eof;
  tls_broken_ = true;
  if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST) {
    error_code ignored;
    socket_.write_some(boost::asio::buffer(kExpectsTls.data(), kExpectsTls.size()), ignored);
  }
  ERR_clear_error();
  return boost::asio::error::connection_reset;
}

bool ClientSocket::HasDecrypted() const { return tls_ != nullptr && SSL_pending(tls_.get()) > 0; }

// Best effort: what the socket does not take is not waited for.
void ClientSocket::EndTls() {
  if (tls_ == nullptr || tls_broken_ || SSL_in_init(tls_.get()) != 0) return;
  ERR_clear_error();
  SSL_shutdown(tls_.get());
  ERR_clear_error();
  tls_broken_ = true;
}

std::string ClientSocket::PeerAddress() const {
  error_code error;
  const auto peer = socket_.remote_endpoint(error);
  return error ? "" : peer.address().to_string();
}

bool ClientSocket::HoldsBytes() const {
  error_code error;
  return HasDecrypted() || (socket_.available(error) > 0 && !error);
}

void ClientSocket::ShutdownSend() {
  EndTls();
  error_code ignored;
  socket_.shutdown(TcpSocket::shutdown_send, ignored);
}

void ClientSocket::Close() {
  EndTls();
  error_code ignored;
  socket_.close(ignored);
}

}  // namespace tandem::router
