// One HTTP request and one whole reply, as plain values without any server library.
// Thread safety: plain values; functions without a state. Owner: the connection, then the handler.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::router {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET"
  std::string path;     // the target up to a '?', without percent-encoding
  std::string query;    // the text after the '?', unchanged
  HttpHeaders headers;  // names in lower case, in the order of the request
  std::string body;
  std::string source;  // who sent it, as failed_keys.h names sources
  absl::Time arrived;  // when this machine received its last bytes; later if it was sent ahead
  bool keep_alive = true;
  bool chunked_allowed = true;  // HTTP/1.1: a reply of unknown length can be chunked

  // The first value of a header (name in lower case); empty when absent.
  absl::string_view Header(absl::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return "";
  }
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;  // besides date, content-type, content-length and connection
  std::string error;    // of a refusal: what was wrong; `body` says it in OpenAI's form
};

// "Not Found" for 404.
absl::string_view ReasonPhrase(int status);
// "Sun, 06 Nov 1994 08:49:37 GMT": a time as the header `date` has it.
std::string HttpDate(absl::Time time);
// Status line and headers of a reply whose body is `reply.body`, made now.
std::string ReplyHead(const HttpReply& reply, bool keep_alive);
// The same for a body of unknown length: chunked, or ended by closing.
std::string StreamHead(const HttpReply& reply, bool keep_alive, bool chunked);

}  // namespace tandem::router
