// Finds requests in the bytes of one connection. Boost.Beast parses; this class sets its limits,
// names faults, and bounds the memory for requests that the client sends ahead.
// Thread safety: none. Owner: the HttpConnection.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "router/front_end/http/http_message.h"

namespace tandem::router {

struct ReaderLimits {
  // Of a header; also of a chunk's size with its extensions, and of the last chunk with the
  // trailer.
  size_t header_bytes_max = size_t{32} << 10;
  size_t body_bytes_max = size_t{16} << 20;
};

class RequestReader {
 public:
  struct NeedMore {};
  // The bytes are not a request. `status` is the HTTP status to answer. No later bytes can be read.
  struct Fault {
    int status = 400;
    std::string message;
  };
  using Result = std::variant<NeedMore, HttpRequest, Fault>;

  explicit RequestReader(const ReaderLimits& limits);
  ~RequestReader();

  void Append(absl::string_view bytes) { buffer_.append(bytes.data(), bytes.size()); }
  // The next whole request. After a Fault every call returns NeedMore.
  Result Next();
  // Forgets the request that has begun, and the bytes behind it. REQUIRES: no call of Next follows.
  void Discard();
  // The number of bytes of requests that Next has not returned.
  size_t buffered() const { return buffer_.size(); }
  // The bytes that the reader holds: these, and the body that has come so far.
  size_t held() const;
  // Whether a request has begun and not ended; if so, the request timeout applies.
  bool in_request() const { return !buffer_.empty() || in_body_; }
  // Once for each request whose header is read and whose body is not: the request without a body.
  std::optional<HttpRequest> TakeHead();
  // What is known, without its body, of the request that is being read or was faulty: all of its
  // header, or what came before the fault. nullopt when not even its target is known.
  std::optional<HttpRequest> Head() const;
  // True once for a request whose client waits for a "100 Continue" before it sends the body.
  bool TakeContinue();

 private:
  struct Parser;  // keeps Beast out of this header

  // Looks at a header that was just read; a fault if its body cannot be read.
  std::optional<Fault> OnHeader();
  // Parses what can be parsed of buffer_.
  std::optional<Fault> Parse();
  Result Finish();
  void Consume(size_t bytes);

  const ReaderLimits limits_;
  std::string buffer_;
  std::unique_ptr<Parser> parser_;
  bool in_body_ = false;
  bool head_taken_ = false;
  bool continue_wanted_ = false;
  bool faulty_ = false;
  std::optional<HttpRequest> faulty_head_;
};

}  // namespace tandem::router
