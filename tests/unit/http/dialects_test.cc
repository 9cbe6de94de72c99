// Goal: endpoints of every dialect answer in its form: also to requests that cannot be read, to
// names that are not served, and about what the fleet holds. Each answer has its date, and pages
// may read the headers that the router sends.
#include <gmock/gmock.h>

#include "absl/strings/str_split.h"
#include "router/front_end/http/http_message.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/http/front_end_parts.h"

namespace tandem::router {
namespace {

using ::tandem::testing::Ask;
using ::tandem::testing::GetOf;
using ::tandem::testing::HttpAnswer;
using ::tandem::testing::PostOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kFleetTokens = 4096;  // as StartHttp says
constexpr size_t kBodyBytesMax = 20000;

class Dialects : public ::testing::Test {
 protected:
  void SetUp() override {
    HttpApiOptions options;
    options.server.limits.reader.body_bytes_max = kBodyBytesMax;
    options.allowed_origins = {"https://page.example"};
    ASSERT_OK_AND_ASSIGN(
        http_, StartHttp(parts_.Session(inbox_, constraints_, long_work_), status_, options));
  }
  void TearDown() override { http_->Stop(); }

  HttpAnswer Post(const std::string& path, const std::string& body) const {
    return Ask(http_->address(), PostOf(path, body));
  }

  FrontEndParts parts_;
  Inbox inbox_{64, [](std::vector<InboxItem>&) {}};
  guided::CompileQueue constraints_{[](const request::GuidedParams&) {}};
  LongWork long_work_;
  StatusBoard status_{inbox_};
  std::unique_ptr<HttpApi> http_;
};

TEST_F(Dialects, ABodyThatIsTooLargeIsRefusedInTheFormOfThePath) {
  const auto refused = [&](const std::string& path, const std::string& coding) {
    const HttpAnswer answer =
        Ask(http_->address(), absl::StrCat("POST ", path, " HTTP/1.1\r\nhost: t\r\n", coding));
    EXPECT_EQ(answer.status, 413) << path;
    EXPECT_NE(answer.Header("x-request-id"), "") << path;
    return answer.Json();
  };
  // One that says how long it is, and one whose chunks become too long.
  for (const std::string& coding :
       {absl::StrCat("content-length: ", kBodyBytesMax + 1, "\r\n\r\n"),
        absl::StrCat("transfer-encoding: chunked\r\n\r\n", absl::Hex(kBodyBytesMax + 1), "\r\n",
                     std::string(kBodyBytesMax + 1, 'x'), "\r\n0\r\n\r\n")}) {
    const nlohmann::json anthropic = refused("/v1/messages", coding);
    EXPECT_EQ(anthropic["type"], "error") << anthropic;
    EXPECT_EQ(anthropic["error"]["type"], "request_too_large") << anthropic;
    const nlohmann::json ollama = refused("/api/chat", coding);
    EXPECT_TRUE(ollama["error"].is_string()) << ollama;
    const nlohmann::json openai = refused("/v1/chat/completions", coding);
    EXPECT_TRUE(openai["error"]["message"].is_string()) << openai;
  }
}

// A page reads the refusal that its own request got.
TEST_F(Dialects, PagesMayReadWhyARequestCouldNotBeRead) {
  const HttpAnswer answer =
      Ask(http_->address(),
          absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\n",
                       "origin: https://page.example\r\ncontent-length: 20001\r\n\r\n"));
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(answer.Header("access-control-allow-origin"), "https://page.example");
}

TEST_F(Dialects, PagesMayReadTheHeadersOfAnAnswer) {
  const HttpAnswer answer = Ask(
      http_->address(), PostOf("/v1/messages", "{}",
                               "origin: https://page.example\r\nanthropic-version: 2023-06-01\r\n"
                               "traceparent: 00-0af7651916cd43dd8448eb211c80319c-"
                               "b7ad6b7169203331-01\r\n"));
  const std::vector<std::string> shown =
      absl::StrSplit(answer.Header("access-control-expose-headers"), ", ");
  for (const char* name : {"x-request-id", "request-id", "traceparent"}) {
    EXPECT_NE(answer.Header(name), "") << name;
    EXPECT_THAT(shown, Contains(name));
  }
  EXPECT_THAT(shown, Contains("retry-after"));
}

TEST_F(Dialects, EachAnswerHasItsDate) {
  EXPECT_EQ(HttpDate(absl::FromUnixSeconds(784111777)), "Sun, 06 Nov 1994 08:49:37 GMT");
  for (const std::string& request :
       {GetOf("/version"), GetOf("/none"), std::string("\x01\x02\r\n\r\n"),
        PostOf("/v1/completions", "{}")}) {
    const std::string date(Ask(http_->address(), request).Header("date"));
    absl::Time time;
    EXPECT_TRUE(absl::ParseTime("%a, %d %b %E4Y %H:%M:%S GMT", date, &time, nullptr)) << request;
    EXPECT_EQ(date, HttpDate(time));
  }
}

// It is no response that is named so.
TEST_F(Dialects, CompactingIsNotServed) {
  for (const std::string& request :
       {PostOf("/v1/responses/compact", "{}"), GetOf("/v1/responses/compact")}) {
    const HttpAnswer answer = Ask(http_->address(), request);
    EXPECT_EQ(answer.status, 404);
    EXPECT_THAT(answer.body, HasSubstr("no such path: /v1/responses/compact"));
  }
  EXPECT_EQ(Post("/v1/responses/compacted", "{}").status, 405);
}

TEST_F(Dialects, WhatHasNoPathIsRefusedInOpenAIsForm) {
  const HttpAnswer answer = Ask(http_->address(), "\x01\x02\r\n\r\n");
  EXPECT_EQ(answer.status, 400);
  EXPECT_TRUE(answer.Json()["error"]["message"].is_string()) << answer.body;
}

TEST_F(Dialects, CountsAndTokensAreOfTheModelThatIsServed) {
  const std::string messages = R"("messages":[{"role":"user","content":"u"}])";
  const std::pair<const char*, std::string> bodies[] = {
      {"/v1/messages/count_tokens", messages},
      {"/v1/responses/input_tokens", R"("input":"u")"},
      {"/tokenize", R"("prompt":"u")"},
      {"/tokenize", messages},
      {"/detokenize", R"("tokens":[104])"}};
  for (const auto& [path, members] : bodies) {
    EXPECT_EQ(Post(path, absl::StrCat("{", members, "}")).status, 200) << path;
    EXPECT_EQ(Post(path, absl::StrCat(R"({"model":"hash",)", members, "}")).status, 200) << path;
    const HttpAnswer other = Post(path, absl::StrCat(R"({"model":"other",)", members, "}"));
    EXPECT_EQ(other.status, 404) << path << ": " << other.body;
    EXPECT_THAT(other.body, HasSubstr("is not served here")) << path;
  }
}

TEST_F(Dialects, TruncationFitsWhatTheFleetHolds) {
  const HttpAnswer counted =
      Post("/v1/responses/input_tokens",
           absl::StrCat(R"({"truncation":"auto","input":")", std::string(9000, 'x'), "\"}"));
  EXPECT_EQ(counted.Json()["input_tokens"], kFleetTokens - 1024) << counted.body;
}

// Clients refuse versions of Ollama that are too old for them.
TEST_F(Dialects, OllamasVersionIsThatOfTheApi) {
  const nlohmann::json ollama = Ask(http_->address(), GetOf("/api/version")).Json();
  const nlohmann::json own = Ask(http_->address(), GetOf("/version")).Json();
  EXPECT_EQ(ollama["version"], "0.6.4");
  EXPECT_EQ(ollama["tandem"], own["version"]);
}

TEST_F(Dialects, OllamasShowNeedsAModel) {
  for (const char* body : {"{}", R"({"model":""})", R"({"name":null})"}) {
    const auto answer = Post("/api/show", body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(answer.body, R"({"error":"model is required"})");
  }
  EXPECT_EQ(Post("/api/show", R"({"name":"hash"})").status, 200);
}

TEST_F(Dialects, ARequestHasOneHost) {
  EXPECT_EQ(Ask(http_->address(), "GET /live HTTP/1.1\r\nconnection: close\r\n\r\n").status, 400);
  EXPECT_EQ(
      Ask(http_->address(), "GET /live HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n\r\n")
          .status,
      400);
  EXPECT_EQ(Ask(http_->address(), "GET /live HTTP/1.0\r\n\r\n").status, 200);
}

TEST_F(Dialects, OnlyATemplateThatShowsToolsIsListedWithThem) {
  const auto capabilities = [&] {
    return Post("/api/show", R"({"model":"hash"})").Json()["capabilities"];
  };
  const nlohmann::json without = {"completion"};
  const nlohmann::json with = {"completion", "tools"};
  EXPECT_EQ(capabilities(), without);
  ASSERT_OK(parts_.assets->UseChatTemplate(
      "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ messages[0].content }}"));
  EXPECT_EQ(capabilities(), with);
}

}  // namespace
}  // namespace tandem::router
