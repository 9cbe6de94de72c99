// A connection to an HTTP server, in plain text or over TLS. A Boost.Asio AsyncStream that takes
// completion handlers (no other completion tokens).
// Thread safety: none; the thread that runs the io_context. Owner: an HTTP call or its pool.
#pragma once

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tandem::cli {

// Where connections go to.
struct HttpPeer {
  std::vector<boost::asio::ip::tcp::endpoint> endpoints;
  std::string host;                                // for the Host header
  std::string host_name;                           // which the server's certificate must name
  std::string api_key;                             // may be empty
  std::shared_ptr<boost::asio::ssl::context> tls;  // of all its connections; null: plain text
};

class HttpStream {
 public:
  using Tcp = boost::asio::ip::tcp;
  using ErrorCode = boost::system::error_code;
  using executor_type = Tcp::socket::executor_type;  // the names that Boost asks for
  using lowest_layer_type = Tcp::socket;

  // `peer` outlives the stream.
  HttpStream(boost::asio::io_context& context, const HttpPeer& peer);

  executor_type get_executor() { return socket_.get_executor(); }

  // Connects, and does the TLS handshake if there is TLS; then calls `handler`(error). Call once.
  template <typename Handler>
  void Open(Handler handler) {
    boost::asio::async_connect(
        socket_, peer_.endpoints,
        [this, handler = std::move(handler)](const ErrorCode& error, const Tcp::endpoint&) mutable {
          ErrorCode ignored;
          if (!error) socket_.set_option(Tcp::no_delay(true), ignored);
          if (error || tls_ == nullptr) return handler(error);
          tls_->async_handshake(boost::asio::ssl::stream_base::client, std::move(handler));
        });
  }
  // Operations in flight end with an error.
  void Close();

  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_ != nullptr) return tls_->async_read_some(buffers, std::forward<Handler>(handler));
    socket_.async_read_some(buffers, std::forward<Handler>(handler));
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_ != nullptr) return tls_->async_write_some(buffers, std::forward<Handler>(handler));
    socket_.async_write_some(buffers, std::forward<Handler>(handler));
  }

 private:
  const HttpPeer& peer_;
  Tcp::socket socket_;
  std::unique_ptr<boost::asio::ssl::stream<Tcp::socket&>> tls_;  // over the socket; may be null
};

}  // namespace tandem::cli
