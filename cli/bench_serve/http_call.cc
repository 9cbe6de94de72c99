#include "cli/bench_serve/http_call.h"

#include <array>
#include <boost/asio/post.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/runtime/clock.h"

namespace tandem::cli {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

// Bytes of a reply that is not a stream, kept for the error message.
constexpr size_t kErrorBytesMax = 4096;

class HttpCall final : public LoadCall, public std::enable_shared_from_this<HttpCall> {
 public:
  HttpCall(HttpPool& pool, HttpRequestMessage request, AnswerObserver& observer)
      : pool_(pool), request_(std::move(request)), observer_(observer) {}

  void Begin() {
    if (cancelled_) return End("connection", "cancelled");
    if (pool_.idle.empty()) return Connect();
    reused_ = true;
    stream_ = std::move(pool_.idle.back());
    pool_.idle.pop_back();
    Write();
  }

  void Cancel() override {
    cancelled_ = true;
    if (stream_ != nullptr) stream_->Close();
  }

 private:
  void Connect() {
    stream_ = std::make_unique<HttpStream>(pool_.context, pool_.peer);
    stream_->Open([self = shared_from_this()](const error_code& error) {
      if (error) return self->End("connection", error.message());
      self->Write();
    });
  }

  void Write() {
    http::async_write(*stream_, request_,
                      [self = shared_from_this()](const error_code& error, size_t) {
                        if (error) return self->OnBroken(error);
                        self->ReadHeader();
                      });
  }

  void ReadHeader() {
    parser_.emplace();
    // boost::none would compare below every length in Boost 1.74.
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    http::async_read_header(*stream_, buffer_, *parser_,
                            [self = shared_from_this()](const error_code& error, size_t) {
                              if (error) return self->OnBroken(error);
                              self->OnHeader();
                            });
  }

  // No byte of the reply has arrived: the server may have closed the idle connection meanwhile.
  void OnBroken(const error_code& error) {
    if (!reused_ || cancelled_) return End("connection", error.message());
    reused_ = false;
    buffer_.clear();
    Connect();
  }

  void OnHeader() {
    const auto& head = parser_->get();
    status_ = head.result_int();
    is_stream_ = status_ == 200 && absl::StartsWith(std::string(head[http::field::content_type]),
                                                    "text/event-stream");
    ReadBody();
  }

  void ReadBody() {
    parser_->get().body().data = bytes_.data();
    parser_->get().body().size = bytes_.size();
    parser_->get().body().more = true;
    http::async_read_some(
        *stream_, buffer_, *parser_,
        [self = shared_from_this()](const error_code& error, size_t) { self->OnBody(error); });
  }

  void OnBody(const error_code& error) {
    now_ = RealClock().Now();
    if (error && error != http::error::need_buffer) {
      return End(done_ ? "" : "cut off", error.message());
    }
    const absl::string_view bytes(bytes_.data(), bytes_.size() - parser_->get().body().size);
    if (!is_stream_) {
      if (body_.size() < kErrorBytesMax) body_.append(bytes.data(), bytes.size());
    } else if (absl::Status status =
                   events_.Append(bytes, [this](absl::string_view data) { OnEvent(data); });
               !status.ok()) {
      return End("bad stream", std::string(status.message()));
    }
    if (!parser_->is_done()) return ReadBody();
    OnWhole();
  }

  void OnEvent(absl::string_view data) {
    const AnswerEvent event = ReadAnswerEvent(data);
    done_ = done_ || event.done;
    if (!event.error.empty() && stream_error_.empty()) stream_error_ = event.error;
    if (event.usage.has_value()) observer_.OnUsage(*event.usage);
    if (event.has_text) observer_.OnText(now_);
  }

  void OnWhole() {
    if (parser_->keep_alive() && buffer_.size() == 0 && !cancelled_) {
      pool_.idle.push_back(std::move(stream_));
    }
    if (status_ != 200) return End(absl::StrCat("HTTP ", status_), ErrorMessageOf(body_));
    if (!is_stream_) return End("no stream", "the reply is not text/event-stream");
    if (!stream_error_.empty()) return End("in the stream", stream_error_);
    End(done_ ? "" : "cut off", done_ ? "" : "the stream ended without [DONE]");
  }

  void End(const std::string& error, const std::string& message) {
    observer_.OnEnd(RealClock().Now(), error, error.empty() ? "" : message);
  }

  HttpPool& pool_;
  const HttpRequestMessage request_;
  AnswerObserver& observer_;
  std::unique_ptr<HttpStream> stream_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::response_parser<http::buffer_body>> parser_;
  std::array<char, 16384> bytes_;
  EventStreamReader events_;
  std::string body_, stream_error_;
  absl::Time now_;
  unsigned status_ = 0;
  bool is_stream_ = false, done_ = false, reused_ = false, cancelled_ = false;
};

}  // namespace

HttpRequestMessage MakeHttpRequest(const HttpPeer& peer, http::verb method, const std::string& path,
                                   std::string body) {
  HttpRequestMessage request(method, path, 11);
  request.set(http::field::host, peer.host);
  request.set(http::field::user_agent, "tandem-bench");
  if (!peer.api_key.empty()) {
    request.set(http::field::authorization, absl::StrCat("Bearer ", peer.api_key));
  }
  if (method == http::verb::post) {
    request.set(http::field::content_type, "application/json");
    request.body() = std::move(body);
  }
  request.prepare_payload();
  return request;
}

std::shared_ptr<LoadCall> StartHttpCall(HttpPool& pool, HttpRequestMessage request,
                                        AnswerObserver& observer) {
  auto call = std::make_shared<HttpCall>(pool, std::move(request), observer);
  boost::asio::post(pool.context, [call] { call->Begin(); });
  return call;
}

}  // namespace tandem::cli
