#include "cli/bench_serve/http_stream.h"

#include <openssl/ssl.h>

namespace tandem::cli {

HttpStream::HttpStream(boost::asio::io_context& context, const HttpPeer& peer)
    : peer_(peer), socket_(context) {
  if (peer.tls == nullptr) return;
  tls_ = std::make_unique<boost::asio::ssl::stream<Tcp::socket&>>(socket_, *peer.tls);
  ErrorCode no_address;
  boost::asio::ip::make_address(peer.host_name, no_address);
  // Server name indication takes names only, no addresses (RFC 6066, section 3).
  if (no_address) SSL_set_tlsext_host_name(tls_->native_handle(), peer.host_name.c_str());
  tls_->set_verify_mode(boost::asio::ssl::verify_peer);
  tls_->set_verify_callback(boost::asio::ssl::host_name_verification(peer.host_name));
}

void HttpStream::Close() {
  ErrorCode ignored;
  socket_.close(ignored);
}

}  // namespace tandem::cli
