// Goal: requests are found in any split of a connection's bytes; JSON is bounded and its faults are
// named; tool calls are found in any split of an answer's text; keys are checked and refilled.
#include <gmock/gmock.h>

#include "router/http/api_keys.h"
#include "router/http/json_body.h"
#include "router/http/request_reader.h"
#include "router/http/tool_calls.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

std::vector<HttpRequest> ReadAll(const std::string& bytes, size_t piece) {
  RequestReader reader({});
  std::vector<HttpRequest> requests;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    reader.Append(absl::string_view(bytes).substr(at, piece));
    while (true) {
      RequestReader::Result next = reader.Next();
      auto* request = std::get_if<HttpRequest>(&next);
      if (request == nullptr) break;
      requests.push_back(std::move(*request));
    }
  }
  EXPECT_EQ(reader.buffered(), 0u);
  return requests;
}

TEST(RequestReader, FindsRequestsInAnySplit) {
  const std::string bytes =
      "\r\nGET /a?b=c HTTP/1.1\r\nHost: x\r\nX-Thing:  v \r\n\r\n"
      "POST /p HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"
      "POST /q HTTP/1.1\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
      "2\r\nde\r\n1\r\nf\r\n0\r\n\r\n"
      "GET /z HTTP/1.0\r\n\r\n";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    const std::vector<HttpRequest> requests = ReadAll(bytes, piece);
    ASSERT_EQ(requests.size(), 4u) << piece;
    EXPECT_EQ(requests[0].path, "/a");
    EXPECT_EQ(requests[0].Header("x-thing"), "v");
    EXPECT_TRUE(requests[0].keep_alive);
    EXPECT_EQ(requests[1].body, "abc");
    EXPECT_EQ(requests[2].body, "def");
    EXPECT_FALSE(requests[2].keep_alive);
    EXPECT_FALSE(requests[3].chunked_allowed);
  }
}

TEST(RequestReader, BoundsHeadersAndBodies) {
  RequestReader reader({.header_bytes_max = 1000, .body_bytes_max = 10});
  reader.Append("POST / HTTP/1.1\r\ncontent-length: 11\r\n\r\n");
  RequestReader::Result result = reader.Next();
  ASSERT_TRUE(std::holds_alternative<RequestReader::Fault>(result));
  EXPECT_EQ(std::get<RequestReader::Fault>(result).status, 413);
  // Nothing is found after a fault.
  reader.Append("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(std::holds_alternative<RequestReader::NeedMore>(reader.Next()));
}

TEST(JsonBody, BoundsSize) {
  EXPECT_THAT(ParseJsonBody(R"({"a":[1,2,3]})", {.values_max = 4}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than 4 values")));
  // Large objects find duplicates too.
  std::string large = "{";
  for (int i = 0; i < 100; ++i) large += "\"k" + std::to_string(i) + "\":1,";
  EXPECT_OK(ParseJsonBody(large + "\"k100\":1}"));
  EXPECT_THAT(ParseJsonBody(large + "\"k7\":1}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("k7: given twice")));
}

TEST(JsonBody, KeepsOrderAndWritesWhatIsNotUtf8) {
  const absl::StatusOr<Json> json = ParseJsonBody(R"({"z":1,"a":[{"q":null}]})");
  ASSERT_OK(json);
  EXPECT_EQ(JsonText(*json), R"({"z":1,"a":[{"q":null}]})");
  std::string text;
  AppendJsonString("a\xff\"\n", text);
  EXPECT_EQ(text, "\"a\xef\xbf\xbd\\\"\\n\"");
}

// The pieces of `text` given out a few bytes at a time, joined up.
ToolPieces Found(ToolMode mode, const std::string& text, size_t piece) {
  ToolCallFinder finder(mode, "named");
  ToolPieces all;
  const auto add = [&all](ToolPieces pieces) {
    all.content += pieces.content;
    for (ToolCall& call : pieces.calls) all.calls.push_back(std::move(call));
  };
  for (size_t at = 0; at < text.size(); at += piece) {
    add(finder.Append(absl::string_view(text).substr(at, piece)));
  }
  add(finder.Flush());
  EXPECT_EQ(finder.found(), !all.calls.empty());
  return all;
}

TEST(ToolCalls, AreFoundInAnySplit) {
  const std::string text =
      "Let me <see>.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"
      "<tool_call>{\"name\":\"g\"}</tool_call> and <tool_call>not a call</tool_call> <tool_";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    const ToolPieces pieces = Found(ToolMode::kAuto, text, piece);
    ASSERT_EQ(pieces.calls.size(), 2u) << piece;
    EXPECT_EQ(pieces.calls[0].name, "f");
    EXPECT_EQ(pieces.calls[0].arguments, R"({"x":1})");
    EXPECT_EQ(pieces.calls[1].arguments, "{}");
    EXPECT_EQ(pieces.content, "Let me <see>. and <tool_call>not a call</tool_call> <tool_");
  }
}

TEST(ToolCalls, EndWhereTheAnswerDoes) {
  const ToolPieces open = Found(ToolMode::kAuto, R"(<tool_call>{"name":"f","arguments":{}})", 3);
  ASSERT_EQ(open.calls.size(), 1u);
  EXPECT_EQ(open.content, "");
  const ToolPieces named = Found(ToolMode::kNamed, R"({"x":1})", 2);
  ASSERT_EQ(named.calls.size(), 1u);
  EXPECT_EQ(named.calls[0].name, "named");
  const ToolPieces list = Found(
      ToolMode::kRequired, R"([{"name":"a","parameters":{}},{"name":"b","parameters":{}}])", 4);
  EXPECT_EQ(list.calls.size(), 2u);
}

TEST(ApiKeys, RefillByTheMinute) {
  ASSERT_OK_AND_ASSIGN(
      auto keys,
      ApiKeys::Parse("a " + Sha256Hex("k") + " requests_per_minute=60 tokens_per_minute=120 # x\n",
                     "file"));
  absl::Time now = absl::UnixEpoch();
  ApiKeys::Key* key = nullptr;
  for (int i = 0; i < 60; ++i) {
    ASSERT_OK_AND_ASSIGN(key, keys->Admit("Bearer k", now));
  }
  EXPECT_THAT(keys->Admit("Bearer k", now),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("60 requests a minute")));
  now += absl::Seconds(1);
  EXPECT_OK(keys->Admit("Bearer k", now));
  keys->Charge(key, 240, now);
  now += absl::Seconds(30);
  EXPECT_THAT(keys->Admit("Bearer k", now),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("120 tokens a minute")));
  now += absl::Seconds(60);
  EXPECT_OK(keys->Admit("Bearer k", now));
  EXPECT_THAT(keys->Admit("Bearer kk", now),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("not known")));
  EXPECT_THAT(keys->Admit("", now), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("")));
}

TEST(ApiKeys, BadFilesNameTheLine) {
  EXPECT_THAT(ApiKeys::Parse("\nname", "file"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("file:2: ")));
  EXPECT_THAT(ApiKeys::Parse("name abcd", "file"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("64 hex digits")));
  EXPECT_THAT(ApiKeys::Parse("name " + Sha256Hex("x") + " requests=5", "file"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("requests=5")));
}

}  // namespace
}  // namespace tandem::router
