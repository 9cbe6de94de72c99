// Goal: what a request may be beside its body is bounded, however its bytes come: the header, what
// stands before a chunk, and the trailer after the last one. A trailer's fields are no headers.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "router/front_end/http/http_server.h"
#include "router/front_end/http/request_reader.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

constexpr size_t kHeaderBytesMax = ReaderLimits().header_bytes_max;
constexpr char kChunked[] = "POST /p HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";

std::string Repeated(const std::string& text, size_t bytes_min) {
  std::string all;
  while (all.size() < bytes_min) all += text;
  return all;
}

// What the reader says first of bytes that come in pieces of this size.
RequestReader::Result FirstOf(const std::string& bytes, size_t piece) {
  RequestReader reader({});
  for (size_t at = 0; at < bytes.size(); at += piece) {
    reader.Append(absl::string_view(bytes).substr(at, piece));
    RequestReader::Result next = reader.Next();
    if (!std::holds_alternative<RequestReader::NeedMore>(next)) return next;
    EXPECT_LE(reader.buffered(), kHeaderBytesMax + piece);
  }
  return RequestReader::NeedMore{};
}

void ExpectTooLarge(const std::string& bytes) {
  for (const size_t piece : {bytes.size(), size_t{65536}, size_t{16384}, size_t{1000}, size_t{4}}) {
    const RequestReader::Result first = FirstOf(bytes, piece);
    const auto* fault = std::get_if<RequestReader::Fault>(&first);
    ASSERT_NE(fault, nullptr) << "in pieces of " << piece;
    EXPECT_EQ(fault->status, 431) << "in pieces of " << piece;
    EXPECT_THAT(fault->message, HasSubstr(absl::StrCat("larger than ", kHeaderBytesMax)));
  }
}

TEST(RequestBounds, AHeaderWithoutAnEnd) {
  ExpectTooLarge("GET /abcdef HTTP/1.1\r\n" + Repeated("a:\r\n", 33 << 10));
  ExpectTooLarge("GET / HTTP/1.1\r\n" + Repeated("name: value\r\n", 33 << 10));
  ExpectTooLarge("GET / HTTP/1.1\r\nname: " + Repeated("v", 33 << 10));
}

TEST(RequestBounds, ATrailer) {
  for (const char* last : {"0\r\n", "1\r\nx\r\n0\r\n", "1\r\nx\r\n0;a=b\r\n"}) {
    SCOPED_TRACE(last);
    for (const char* end : {"", "\r\n"}) {
      ExpectTooLarge(absl::StrCat(kChunked, last, Repeated("a:\r\n", 33 << 10), end));
      ExpectTooLarge(absl::StrCat(kChunked, last, "a: ", Repeated("v", 33 << 10), "\r\n", end));
    }
  }
}

TEST(RequestBounds, WhatStandsBeforeAChunk) {
  for (const char* size : {"1", "0"}) {
    ExpectTooLarge(absl::StrCat(kChunked, size, ";a=", Repeated("v", 33 << 10)));
    ExpectTooLarge(absl::StrCat(kChunked, size, ";a=", Repeated("v", 33 << 10), "\r\nx\r\n"));
  }
}

TEST(RequestBounds, WhatCannotBecomeAChunkIsRefusedAtOnce) {
  const RequestReader::Result first = FirstOf(std::string(kChunked) + "zz\r\n", 100);
  const auto* fault = std::get_if<RequestReader::Fault>(&first);
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->status, 400);
}

// As much as is allowed is read, beside a body that is larger than the bound.
TEST(RequestBounds, WhatIsAllowedIsRead) {
  const std::string body(3 * kHeaderBytesMax, 'x');
  const std::string fields = Repeated("a: b\r\n", kHeaderBytesMax - 100);
  const std::string bytes = absl::StrCat("POST /p HTTP/1.1\r\ntransfer-encoding: chunked\r\n",
                                         fields, "\r\n", absl::Hex(body.size()), "\r\n", body,
                                         "\r\n", "3\r\nend\r\n0\r\n", fields, "\r\n");
  ASSERT_LE(fields.size(), kHeaderBytesMax - 60);
  for (const size_t piece : {bytes.size(), size_t{65536}, size_t{1000}, size_t{7}}) {
    const RequestReader::Result first = FirstOf(bytes, piece);
    const auto* request = std::get_if<HttpRequest>(&first);
    ASSERT_NE(request, nullptr) << "in pieces of " << piece;
    EXPECT_EQ(request->body, body + "end") << "in pieces of " << piece;
  }
}

// A trailer can neither name a request nor bring a key, a coding or the end of the connection.
TEST(RequestBounds, ATrailersFieldsAreNoHeaders) {
  const std::string bytes =
      "POST /p HTTP/1.1\r\nx-thing: first\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n"
      "x-request-id: t\r\nauthorization: Bearer k\r\nx-thing: second\r\nconnection: close\r\n\r\n";
  for (const size_t piece : {bytes.size(), size_t{16}, size_t{1}}) {
    const RequestReader::Result first = FirstOf(bytes, piece);
    const auto* request = std::get_if<HttpRequest>(&first);
    ASSERT_NE(request, nullptr) << "in pieces of " << piece;
    EXPECT_EQ(request->body, "ab");
    EXPECT_TRUE(request->keep_alive);
    EXPECT_EQ(request->headers,
              (HttpHeaders{{"x-thing", "first"}, {"transfer-encoding", "chunked"}}));
  }
}

// A client that sends its body at once does not wait for "100 Continue".
TEST(RequestBounds, ABodyThatIsThereIsNotAskedFor) {
  const std::string head = "POST /p HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
  RequestReader whole({});
  whole.Append(head + "ab");
  RequestReader::Result next = whole.Next();
  EXPECT_TRUE(std::holds_alternative<HttpRequest>(next));
  EXPECT_FALSE(whole.TakeContinue());
  RequestReader waits({});
  waits.Append(head);
  next = waits.Next();
  EXPECT_TRUE(std::holds_alternative<RequestReader::NeedMore>(next));
  EXPECT_TRUE(waits.TakeContinue());
}

TEST(RequestBounds, AServerRefusesATrailerWithoutAnEnd) {
  HttpConnection::Hooks hooks;
  hooks.handle = [](HttpRequest, std::shared_ptr<HttpExchange> exchange) {
    exchange->Reply({200, "text/plain", "whole"});
  };
  hooks.fault = [](int status, const std::string& message, const auto&) {
    return HttpReply{status, "text/plain", message};
  };
  HttpServerOptions options;
  options.address = "127.0.0.1:0";
  options.threads = 1;
  ASSERT_OK_AND_ASSIGN(auto server, HttpServer::Start(options, std::move(hooks)));
  const std::string begun = std::string(kChunked) + "0\r\n" + Repeated("a:\r\n", 33 << 10);
  EXPECT_EQ(testing::Ask(server->address(), begun).status, 431);
  const std::string whole = std::string(kChunked) + "0\r\na: b\r\n\r\n";
  EXPECT_EQ(testing::Ask(server->address(), whole).body, "whole");
}

}  // namespace
}  // namespace tandem::router
