// One streamed completion over HTTP, on connections that stay open between calls.
// Thread safety: none; the thread that runs the pool's io_context. Owner: the HTTP target.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench_serve/http_stream.h"
#include "cli/bench_serve/load_target.h"

namespace tandem::cli {

// Idle connections, for the next requests. The pool outlives the calls.
struct HttpPool {
  explicit HttpPool(boost::asio::io_context& io) : context(io) {}
  boost::asio::io_context& context;
  HttpPeer peer;
  // Bound: the most requests that were in flight at a time.
  std::vector<std::unique_ptr<HttpStream>> idle;
};

using HttpRequestMessage = boost::beast::http::request<boost::beast::http::string_body>;
HttpRequestMessage MakeHttpRequest(const HttpPeer& peer, boost::beast::http::verb method,
                                   const std::string& path, std::string body);

// Sends `request`. When an idle connection turns out to be closed, the call opens a new one, once.
std::shared_ptr<LoadCall> StartHttpCall(HttpPool& pool, HttpRequestMessage request,
                                        AnswerObserver& observer);

}  // namespace tandem::cli
