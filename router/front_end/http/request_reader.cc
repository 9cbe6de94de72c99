#include "router/front_end/http/request_reader.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"

namespace tandem::router {
namespace {

namespace http = boost::beast::http;

// A buffer that grew beyond this for one request is given back.
constexpr size_t kReaderKeptBytesMax = 16384;

absl::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

// A target's path without its percent-encoding: names of models may have any character, a slash
// among them. What is no encoding stays as it is.
std::string DecodedPath(absl::string_view path) {
  std::string decoded;
  for (size_t i = 0; i < path.size(); ++i) {
    const absl::string_view digits = path.substr(i + 1, 2);
    const bool encoded = path[i] == '%' && digits.size() == 2 && absl::ascii_isxdigit(digits[0]) &&
                         absl::ascii_isxdigit(digits[1]);
    decoded += encoded ? absl::HexStringToBytes(digits) : std::string(1, path[i]);
    if (encoded) i += digits.size();
  }
  return decoded;
}

// A target without scheme and authority, as proxies send it with them (RFC 9112, 3.2.2): every
// authority is this server's.
absl::string_view OriginForm(absl::string_view target) {
  const size_t scheme = target.find("://");
  const absl::string_view name = target.substr(0, scheme);
  if (!absl::EqualsIgnoreCase(name, "http") && !absl::EqualsIgnoreCase(name, "https")) {
    return target;
  }
  target.remove_prefix(scheme + 3);
  const size_t path = target.find_first_of("/?");
  return path == absl::string_view::npos ? "" : target.substr(path);
}

RequestReader::Fault FaultOf(const boost::system::error_code& error, const ReaderLimits& limits,
                             bool in_body) {
  if (error == http::error::body_limit) {
    return {413, absl::StrCat("body: larger than ", limits.body_bytes_max, " bytes")};
  }
  if (error == http::error::header_limit) {
    return {431, absl::StrCat(in_body ? "a chunk's size or the trailer" : "headers",
                              ": larger than ", limits.header_bytes_max, " bytes")};
  }
  if (error == http::error::bad_version) return {505, "version: expected HTTP/1.0 or HTTP/1.1"};
  if (error == http::error::bad_transfer_encoding) {
    return {501, "transfer-encoding: expected chunked or none"};
  }
  return {400, absl::StrCat("not a well-formed HTTP request: ", error.message())};
}

// A request without its body.
HttpRequest RequestOf(const http::request<http::string_body>& message) {
  HttpRequest request;
  request.keep_alive = message.keep_alive();
  request.chunked_allowed = message.version() >= 11;
  request.method = std::string(message.method_string());
  const absl::string_view target = OriginForm(View(message.target()));
  request.path = DecodedPath(target.substr(0, target.find('?')));
  if (request.path.empty()) request.path = "/";
  if (const size_t query = target.find('?'); query != absl::string_view::npos) {
    request.query = std::string(target.substr(query + 1));
  }
  for (const auto& field : message) {
    request.headers.emplace_back(absl::AsciiStrToLower(View(field.name_string())),
                                 std::string(field.value()));
  }
  return request;
}

// "0", an end of line, and an empty line.
constexpr size_t kLastChunkBytes = 5;

}  // namespace

struct RequestReader::Parser {
  http::request_parser<http::string_body> parser;
  size_t header_bytes = 0;  // read so far
  bool wants_more = false;  // it has looked at the bytes that it left
  // Made when the header is whole: the parser adds the fields of a trailer to the header's, which
  // they are not (RFC 9110, 6.5.1).
  HttpRequest head;
};

RequestReader::RequestReader(const ReaderLimits& limits) : limits_(limits) {}
RequestReader::~RequestReader() = default;

size_t RequestReader::held() const {
  return buffer_.size() + (parser_ == nullptr ? 0 : parser_->parser.get().body().size());
}

void RequestReader::Consume(size_t bytes) {
  buffer_.erase(0, bytes);
  if (buffer_.empty() && buffer_.capacity() > kReaderKeptBytesMax) buffer_.shrink_to_fit();
}

std::optional<RequestReader::Fault> RequestReader::OnHeader() {
  auto& parser = parser_->parser;
  parser.eager(true);
  parser_->head = RequestOf(parser.get());
  head_taken_ = false;
  continue_wanted_ =
      !parser.is_done() &&
      absl::EqualsIgnoreCase(View(parser.get()[http::field::expect]), "100-continue");
  const absl::string_view coding = View(parser.get()[http::field::transfer_encoding]);
  if (coding.empty() || absl::EqualsIgnoreCase(coding, "chunked")) return std::nullopt;
  // The body's end cannot be found (RFC 9112, 6.3): what follows could be read as a request.
  Fault fault{501, absl::StrCat("transfer-encoding: ", Shown(coding), ", expected chunked alone")};
  faulty_head_ = Head();
  Discard();
  return fault;
}

RequestReader::Result RequestReader::Next() {
  if (faulty_) return NeedMore{};
  if (parser_ == nullptr) {
    // Empty lines before a request are ignored (RFC 9112, 2.2).
    size_t blank = 0;
    while (blank < buffer_.size() && (buffer_[blank] == '\r' || buffer_[blank] == '\n')) ++blank;
    if (blank > 0) Consume(blank);
    if (buffer_.empty()) return NeedMore{};
    parser_ = std::make_unique<Parser>();
    parser_->parser.header_limit(static_cast<std::uint32_t>(limits_.header_bytes_max));
    parser_->parser.body_limit(limits_.body_bytes_max);
  }
  if (std::optional<Fault> fault = Parse()) return *std::move(fault);
  const auto& parser = parser_->parser;
  in_body_ = parser.is_header_done() && !parser.is_done();
  if (!parser.is_done()) return NeedMore{};
  return Finish();
}

std::optional<RequestReader::Fault> RequestReader::Parse() {
  auto& parser = parser_->parser;
  size_t at = 0;  // in buffer_: what lies before is parsed
  while (!parser.is_done() && at < buffer_.size()) {
    const bool had_header = parser.is_header_done();
    size_t size = buffer_.size() - at;
    // The parser bounds no header that comes in pieces, and neither what stands before a chunk nor
    // a trailer. It reads each of these two in one call, so it is shown no more than the bound.
    size_t bound = std::numeric_limits<size_t>::max();
    if (!had_header) {
      bound = limits_.header_bytes_max - parser_->header_bytes;
    } else if (parser.chunked()) {
      bound = limits_.header_bytes_max;
      // The parser ends the process when it is called again with less than a whole last chunk. No
      // chunked body has fewer bytes left before its end, so waiting for them stops no request. It
      // looks once at fewer, so that what cannot become a chunk is refused at once.
      if (parser_->wants_more && size < kLastChunkBytes) break;
    }
    size = std::min(size, bound);
    boost::system::error_code error;
    const size_t used = parser.put(boost::asio::buffer(buffer_.data() + at, size), error);
    at += used;
    parser_->wants_more = error == http::error::need_more;
    if (!had_header) parser_->header_bytes += used;
    if (!had_header && parser.is_header_done()) {
      if (std::optional<Fault> fault = OnHeader()) return fault;
    }
    if (error == http::error::need_more) {
      error = {};
      if (used == 0 && size == bound) error = http::error::header_limit;
    }
    if (error) {
      faulty_head_ = Head();
      faulty_ = true;
      parser_ = nullptr;
      return FaultOf(error, limits_, had_header);
    }
    if (used == 0) break;
  }
  Consume(at);
  return std::nullopt;
}

std::optional<HttpRequest> RequestReader::TakeHead() {
  if (!in_body_ || std::exchange(head_taken_, true)) return std::nullopt;
  return parser_->head;
}

std::optional<HttpRequest> RequestReader::Head() const {
  if (parser_ == nullptr) return faulty_head_;
  const auto& parser = parser_->parser;
  if (parser.is_header_done()) return parser_->head;
  if (parser.get().target().empty()) return std::nullopt;
  return RequestOf(parser.get());
}

RequestReader::Result RequestReader::Finish() {
  HttpRequest request = std::move(parser_->head);
  request.body = std::move(parser_->parser.get().body());
  parser_ = nullptr;
  in_body_ = false;
  continue_wanted_ = false;  // the body came unasked
  return request;
}

void RequestReader::Discard() {
  faulty_ = true;
  in_body_ = false;
  parser_ = nullptr;
  buffer_ = std::string();
}

bool RequestReader::TakeContinue() { return std::exchange(continue_wanted_, false); }

}  // namespace tandem::router
