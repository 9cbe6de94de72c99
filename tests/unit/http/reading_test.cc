// Goal: requests are found in any split of a connection's bytes; JSON is bounded and its faults are
// named; keys are checked and refilled.
#include <gmock/gmock.h>

#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "router/front_end/http/request_reader.h"
#include "router/front_end/json_body.h"
#include "router/front_end/json_tape.h"
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

// The parser underneath ends the process when the last chunk comes in two pieces, of which the
// first has its line and the second too little: one client's three bytes ended the router.
TEST(RequestReader, TheLastChunkMayComeInPieces) {
  for (const std::string body : {"0\r\n\r\n", "00\r\n\r\n", "0;a=b\r\n\r\n", "0\r\na: b\r\n\r\n",
                                 "1\r\nx\r\n0\r\n\r\n", "1\r\nx\r\n0\r\nt: v\r\n\r\n"}) {
    const std::string bytes = "POST /p HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + body;
    const std::string next = "GET /next HTTP/1.1\r\n\r\n";
    for (size_t first = 1; first < bytes.size(); ++first) {
      for (size_t second = first; second < bytes.size(); ++second) {
        RequestReader reader({});
        std::vector<HttpRequest> requests;
        const std::string pieces[] = {bytes.substr(0, first), bytes.substr(first, second - first),
                                      bytes.substr(second), next};
        for (const std::string& piece : pieces) {
          reader.Append(piece);
          RequestReader::Result result = reader.Next();
          if (auto* request = std::get_if<HttpRequest>(&result)) requests.push_back(*request);
        }
        ASSERT_EQ(requests.size(), 2u) << body << " cut at " << first << " and " << second;
        EXPECT_EQ(requests[0].body, body[0] == '1' ? "x" : "");
        EXPECT_EQ(requests[1].path, "/next");
      }
    }
  }
}

// A body whose end cannot be found is not read as no body, and what follows it not as a request.
TEST(RequestReader, RefusesTransferCodingsButChunked) {
  for (const char* coding :
       {"gzip", "identity", "chunked, gzip", "gzip, chunked", "chunkedx", "x"}) {
    RequestReader reader({});
    reader.Append(absl::StrCat("POST /p HTTP/1.1\r\ntransfer-encoding: ", coding,
                               "\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"));
    RequestReader::Result next = reader.Next();
    const auto* fault = std::get_if<RequestReader::Fault>(&next);
    ASSERT_NE(fault, nullptr) << coding;
    EXPECT_EQ(fault->status, 501) << coding;
    EXPECT_THAT(fault->message, HasSubstr("expected chunked")) << coding;
    next = reader.Next();
    EXPECT_TRUE(std::holds_alternative<RequestReader::NeedMore>(next)) << coding;
  }
  RequestReader reader({});
  reader.Append("POST /p HTTP/1.1\r\ntransfer-encoding: Chunked\r\n\r\n1\r\na\r\n0\r\n\r\n");
  RequestReader::Result next = reader.Next();
  EXPECT_TRUE(std::holds_alternative<HttpRequest>(next));
}

TEST(RequestReader, ShowsAHeadOnceBeforeItsBody) {
  RequestReader reader({});
  reader.Append("POST /p HTTP/1.1\r\nauthorization: Bearer k\r\ncontent-le");
  EXPECT_TRUE(std::holds_alternative<RequestReader::NeedMore>(reader.Next()));
  EXPECT_FALSE(reader.TakeHead().has_value());
  reader.Append("ngth: 5\r\n\r\nab");
  EXPECT_TRUE(std::holds_alternative<RequestReader::NeedMore>(reader.Next()));
  const std::optional<HttpRequest> head = reader.TakeHead();
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(head->path, "/p");
  EXPECT_EQ(head->Header("authorization"), "Bearer k");
  EXPECT_EQ(head->body, "");
  EXPECT_FALSE(reader.TakeHead().has_value());
  reader.Append("cde");
  RequestReader::Result next = reader.Next();
  ASSERT_TRUE(std::holds_alternative<HttpRequest>(next));
  EXPECT_EQ(std::get<HttpRequest>(next).body, "abcde");
  reader.Append("POST /q HTTP/1.1\r\ncontent-length: 5\r\n\r\nab");
  EXPECT_TRUE(std::holds_alternative<RequestReader::NeedMore>(reader.Next()));
  EXPECT_TRUE(reader.TakeHead().has_value()) << "of the next request";
  reader.Discard();
  EXPECT_EQ(reader.buffered(), 0u);
}

TEST(RequestReader, DecodesPathsAndLeavesWhatIsNoEncoding) {
  const std::vector<std::pair<std::string, std::string>> targets = {
      {"/v1/models/meta-llama%2FLlama-3.1-8B", "/v1/models/meta-llama/Llama-3.1-8B"},
      {"/v1/%6dodels?a=%2F", "/v1/models"},
      {"/%e2%82%AC", "/\xe2\x82\xac"},
      {"/100%", "/100%"},
      {"/%2", "/%2"},
      {"/%zz%41%", "/%zzA%"}};
  for (const auto& [target, path] : targets) {
    const auto requests = ReadAll("GET " + target + " HTTP/1.1\r\nhost: x\r\n\r\n", 100);
    ASSERT_EQ(requests.size(), 1u) << target;
    EXPECT_EQ(requests[0].path, path);
  }
}

TEST(RequestReader, TakesTargetsAsProxiesSendThem) {
  const std::vector<std::pair<std::string, std::string>> targets = {
      {"http://host/v1/models?a=http://b/c", "/v1/models"},
      {"HTTPS://user@[::1]:8000/health", "/health"},
      {"http://host", "/"},
      {"http://host?a", "/"},
      {"http:///live", "/live"},
      {"ftp://host/live", "ftp://host/live"},
      {"/a://b", "/a://b"},
      {"/http://host/", "/http://host/"},
      {"*", "*"}};
  for (const auto& [target, path] : targets) {
    const auto requests = ReadAll("GET " + target + " HTTP/1.1\r\nhost: x\r\n\r\n", 100);
    ASSERT_EQ(requests.size(), 1u) << target;
    EXPECT_EQ(requests[0].path, path) << target;
  }
}

TEST(RequestReader, BoundsHeadersAndBodies) {
  RequestReader reader({.header_bytes_max = 1000, .body_bytes_max = 10});
  reader.Append("POST / HTTP/1.1\r\ncontent-length: 11\r\n\r\n");
  RequestReader::Result result = reader.Next();
  ASSERT_TRUE(std::holds_alternative<RequestReader::Fault>(result));
  EXPECT_EQ(std::get<RequestReader::Fault>(result).status, 413);
  // What came before the fault is known.
  ASSERT_TRUE(reader.Head().has_value());
  EXPECT_EQ(reader.Head()->path, "/");
  EXPECT_EQ(reader.Head()->Header("content-length"), "11");
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

// What no 64 bits hold is written again as it was read, and is a number like others.
TEST(JsonBody, KeepsEveryDigitOfIntegers) {
  const std::string text =
      R"({"a":123456789012345678901234567890,"b":[-18446744073709551617,1.5,"\n\"é"],)"
      R"("c":{"minimum":18446744073709551616,"x":18446744073709551615},"d":[],"e":{},"f":null})";
  const absl::StatusOr<Json> json = ParseJsonBody(text, {.packs_prompts = true});
  ASSERT_OK(json);
  EXPECT_EQ(JsonText(*json), text);
  const Json& large = (*json)["b"][0];
  ASSERT_TRUE(IsLargeInteger(large));
  EXPECT_FALSE(IsPackedIds(large));
  EXPECT_FALSE(IsList(large));
  EXPECT_EQ(LargeIntegerText(large), "-18446744073709551617");
  EXPECT_EQ(NumberIn(large), -18446744073709551616.0);
  EXPECT_EQ(TypeName(large), "number");
  EXPECT_FALSE(IsLargeInteger((*json)["c"]["x"]));
  EXPECT_EQ(NumberIn((*json)["c"]["x"]), 18446744073709551616.0);
  EXPECT_EQ(NumberIn((*json)["f"]), std::nullopt);
  EXPECT_FALSE(ParseJsonBody("{\"a\":1" + std::string(400, '0') + "}").ok()) << "no double's";
}

TEST(JsonBody, KeepsOrderAndWritesWhatIsNotUtf8) {
  const absl::StatusOr<Json> json = ParseJsonBody(R"({"z":1,"a":[{"q":null}]})");
  ASSERT_OK(json);
  EXPECT_EQ(JsonText(*json), R"({"z":1,"a":[{"q":null}]})");
  std::string text;
  AppendJsonString("a\xff\"\n", text);
  EXPECT_EQ(text, "\"a\xef\xbf\xbd\\\"\\n\"");
}

// Random JSON text, well-formed or nearly: what the mistakes are is the parsers' to find.
class RandomText {
 public:
  explicit RandomText(uint64_t seed) : random_(seed) {}

  std::string Body() {
    std::string text = Object(0);
    if (OneOf(3) == 0) text[OneOf(text.size())] = static_cast<char>(OneOf(256));
    if (OneOf(6) == 0) text.resize(OneOf(text.size() + 1));
    return text;
  }

 private:
  size_t OneOf(size_t count) { return random_() % count; }
  std::string Value(int depth) {
    static constexpr const char* kPlain[] = {"null",
                                             "true",
                                             "false",
                                             "0",
                                             "-0",
                                             "-1",
                                             "7",
                                             "3.0",
                                             "-2.5e3",
                                             "1e400",
                                             "1e-400",
                                             "2147483647",
                                             "2147483648",
                                             "9223372036854775807",
                                             "9223372036854775808",
                                             "-9223372036854775808",
                                             "-9223372036854775809",
                                             "18446744073709551615",
                                             "18446744073709551616",
                                             "0.1",
                                             "01",
                                             "1.",
                                             "+1",
                                             "5e-324",
                                             "123456789.123456789",
                                             "\"\"",
                                             "\"a\\u0000b\"",
                                             "\"\\ud83d\\ude00\"",
                                             "\"\\ud83d\"",
                                             "\"\\uDE00\"",
                                             "\"\xc3\xa9\"",
                                             "\"\xff\"",
                                             "\"\\n\\/\\\"\"",
                                             "\"\x01\"",
                                             "nul",
                                             "\"\\x\""};
    const size_t kind = depth > 4 ? 0 : OneOf(6);
    if (kind == 1) return Object(depth + 1);
    if (kind == 2) return List(depth + 1);
    return kPlain[OneOf(std::size(kPlain))];
  }
  std::string List(int depth) {
    std::string text = "[";
    const bool ids = OneOf(2) == 0;
    for (size_t i = 0, count = OneOf(5); i < count; ++i) {
      absl::StrAppend(&text, i == 0 ? "" : " ,", ids ? std::to_string(OneOf(50000)) : Value(depth));
    }
    return text + "]";
  }
  std::string Object(int depth) {
    static constexpr const char* kNames[] = {"prompt", "tokens", "a", "", "\\u0061", "b"};
    std::string text = "{";
    for (size_t i = 0, count = OneOf(4); i < count; ++i) {
      absl::StrAppend(&text, i == 0 ? "" : ",", "\"", kNames[OneOf(std::size(kNames))],
                      "\": ", Value(depth));
    }
    return text + "}";
  }

  std::mt19937_64 random_;
};

// `value` with its packed lists written out.
Json Unpacked(const Json& value) {
  if (IsPackedIds(value)) return UnpackIds(value);
  Json copy = value;
  if (value.is_structured()) {
    for (auto at = copy.begin(); at != copy.end(); ++at) *at = Unpacked(*at);
  }
  return copy;
}

TEST(JsonBody, BothParsersReadTheSame) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  RandomText texts(seed);
  int fast = 0, packed = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string text = texts.Body();
    SCOPED_TRACE(text);
    const Json expected = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    const absl::StatusOr<Json> got = ParseJsonBody(text);
    // Of what the library takes, names given twice and other values than objects are refused.
    if (got.ok()) {
      EXPECT_EQ(Json::parse(JsonText(*got)), expected);
    } else {
      ++refused;
    }
    const std::optional<Json> read = ReadJsonTape(text, {});
    if (!read.has_value()) continue;
    ++fast;
    ASSERT_FALSE(expected.is_discarded());
    EXPECT_EQ(JsonText(*read), JsonText(expected));
    EXPECT_EQ(*read, expected);
    const std::optional<Json> as_prompt = ReadJsonTape(text, {.packs_prompts = true});
    ASSERT_TRUE(as_prompt.has_value());
    EXPECT_EQ(Unpacked(*as_prompt), expected);
    packed += *as_prompt != *read ? 1 : 0;
  }
  EXPECT_GT(fast, 1000);
  EXPECT_GT(packed, 100);
  EXPECT_GT(refused, 1000);
}

TEST(JsonBody, PacksTokenIdsOfPromptsOnly) {
  const auto json = ParseJsonBody(
      R"({"prompt":[[1,2147483647],[2,-1],[3,4.0],["a"],[]],"tokens":[5],"other":[6],)"
      R"("nested":{"prompt":[7]}})",
      {.packs_prompts = true});
  ASSERT_OK(json);
  const Json& prompts = (*json)["prompt"];
  EXPECT_THAT(UnpackIds(prompts[0]), ::testing::ElementsAre(1, 2147483647));
  for (size_t i = 1; i < prompts.size(); ++i) EXPECT_TRUE(prompts[i].is_array()) << i;
  EXPECT_TRUE(IsPackedIds((*json)["tokens"]));
  EXPECT_TRUE((*json)["other"].is_array());
  EXPECT_TRUE((*json)["nested"]["prompt"].is_array());
}

// A prompt's list is read apart from the rest of the body; what looks like one is not.
TEST(JsonBody, WhatOnlyLooksLikeAPromptsListIsReadAsItStands) {
  const std::string texts[] = {
      R"({"prompt":[1,2],"b":3})",
      R"({ "a" : "x" , "prompt" : [ 1 , 20,2147483647 ] , "b":[4]})",
      R"({"prompt":[0],"prompt":[1]})",
      R"({"prompt":[1],"prompt":[]})",
      R"({"prompt":[01],"b":3})",
      R"({"prompt":[1,],"b":3})",
      R"({"prompt":[1 2],"b":3})",
      R"({"prompt":[2147483648],"b":3})",
      R"({"prompt":[99999999999999999999],"b":3})",
      R"({"prompt":[1,-2],"b":3})",
      R"({"prompt":[1,2.0],"b":3})",
      R"({"prompt":[1,[2]],"b":3})",
      R"({"prompt":[],"b":3})",
      R"({"prompt":[1,2)",
      R"({"prompt":[1,2]]})",
      R"({"a":{"prompt":[1,2]},"prompt":[]})",
      R"({"a":{},"prompt":[1,2]})",
      R"({"a":"{","prompt":[1,2]})",
      R"({"a":",\"prompt\":[1,2]","prompt":[]})",
      R"({"b \"prompt":[1,2],"prompt":[]})",
      R"({"b,\"prompt":[1,2],"prompt":[]})",
      R"({"b,"prompt":[1,2],"prompt":[]})",
      R"({"b":"prompt","prompt":[1,2]})",
      R"({"\u0070rompt":[],"prompt":[1,2]})",
      R"({"prompt\u0022":[1,2],"prompt":[3]})",
      R"([{"prompt":[1,2]}])",
      R"("prompt":[1,2])",
  };
  int packed = 0;
  for (const std::string& text : texts) {
    SCOPED_TRACE(text);
    const absl::StatusOr<Json> plain = ParseJsonBody(text);
    const absl::StatusOr<Json> read = ParseJsonBody(text, {.packs_prompts = true});
    ASSERT_EQ(read.ok(), plain.ok()) << read.status() << plain.status();
    if (!read.ok()) {
      EXPECT_EQ(read.status(), plain.status());
      continue;
    }
    EXPECT_EQ(Unpacked(*read), *plain);
    packed += *read != *plain ? 1 : 0;
  }
  EXPECT_EQ(packed, 7);
  EXPECT_THAT(ParseJsonBody(R"({"prompt":[1,2]})", {.values_max = 3, .packs_prompts = true}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than 3 values")));
  EXPECT_OK(ParseJsonBody(R"({"prompt":[1,2]})", {.values_max = 4, .packs_prompts = true}));
}

TEST(JsonBody, IdsOfEveryLengthArriveAsTheyWereWritten) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> ids(1 + random() % 40);
    std::string list;
    for (int32_t& id : ids) {
      id = static_cast<int32_t>((random() % 0x80000000) >> (random() % 31));
      const char* const between[] = {",", ", ", " ,", ",\n\t", "\r,"};
      absl::StrAppend(&list, list.empty() ? "" : between[random() % 5], id);
    }
    const std::string text = absl::StrCat("{\"prompt\":[", list, "]}");
    SCOPED_TRACE(text);
    const auto json = ParseJsonBody(text, {.packs_prompts = true});
    ASSERT_OK(json);
    ASSERT_TRUE(IsPackedIds((*json)["prompt"]));
    ASSERT_EQ(UnpackIds((*json)["prompt"]), ids);
  }
}

}  // namespace
// Goal: of what a model wrote, the last member of a name counts, also in objects so large that
// names are looked up in a set; what lies beside it stays in order.
TEST(ModelJson, TheLastMemberOfANameCounts) {
  std::string text = R"({"a":0,"b":1,"a":{"c":1,"c":[2]})";
  std::string expected = R"({"b":1,"a":{"c":[2]})";
  for (int i = 0; i < 100; ++i) absl::StrAppend(&text, ",\"m", i % 50, "\":", i);
  for (int i = 50; i < 100; ++i) absl::StrAppend(&expected, ",\"m", i % 50, "\":", i);
  const absl::StatusOr<Json> value = ParseModelJson(text + "}");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(JsonText(*value), expected + "}");
  EXPECT_FALSE(ParseJsonBody(text + "}").ok());
}

TEST(ModelJson, IsBounded) {
  const auto nested = [](int levels) {
    return absl::StrCat("{\"a\":", std::string(static_cast<size_t>(levels - 1), '['),
                        std::string(static_cast<size_t>(levels - 1), ']'), "}");
  };
  EXPECT_TRUE(ParseModelJson(nested(kModelDepthMax)).ok());
  EXPECT_FALSE(ParseModelJson(nested(kModelDepthMax + 1)).ok());
}

}  // namespace tandem::router
