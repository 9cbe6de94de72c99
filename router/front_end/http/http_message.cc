#include "router/front_end/http/http_message.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/runtime/clock.h"

namespace tandem::router {
namespace {

std::string CommonHead(const HttpReply& reply, bool keep_alive) {
  std::string head = absl::StrCat("HTTP/1.1 ", reply.status, " ", ReasonPhrase(reply.status),
                                  "\r\ndate: ", HttpDate(RealClock().Now()),
                                  "\r\ncontent-type: ", reply.content_type, "\r\n");
  for (const auto& [name, value] : reply.headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  if (!keep_alive) absl::StrAppend(&head, "connection: close\r\n");
  return head;
}

}  // namespace

std::string HttpDate(absl::Time time) {
  return absl::FormatTime("%a, %d %b %E4Y %H:%M:%S GMT", time, absl::UTCTimeZone());
}

absl::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

std::string ReplyHead(const HttpReply& reply, bool keep_alive) {
  std::string head = CommonHead(reply, keep_alive);
  absl::StrAppend(&head, "content-length: ", reply.body.size(), "\r\n\r\n");
  return head;
}

std::string StreamHead(const HttpReply& reply, bool keep_alive, bool chunked) {
  std::string head = CommonHead(reply, keep_alive && chunked);
  absl::StrAppend(&head, "cache-control: no-cache\r\nx-accel-buffering: no\r\n",
                  chunked ? "transfer-encoding: chunked\r\n\r\n" : "\r\n");
  return head;
}

}  // namespace tandem::router
