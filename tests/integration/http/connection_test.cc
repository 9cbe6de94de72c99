// Goal: connections behave: kept alive, pipelined in order, 100-continue, HTTP/1.0; a client that
// leaves frees both legs at once, one that does not read is ended alone; keys and quotas hold.
#include <gmock/gmock.h>
#include <poll.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "tests/testing/http_client.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kFreedWithin = absl::Seconds(15);

std::string Endless(bool stream) {
  nlohmann::json body = {{"prompt", std::string(300, 'p')},
                         {"max_tokens", 4000},
                         {"ignore_eos", true},
                         {"stream", stream}};
  return PostOf("/v1/completions", body.dump());
}

TEST(HttpConnections, AreKeptAndPipelined) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256"}));
  HttpSocket socket(cluster->http_address());
  // Three at once: answered in order, over one connection.
  const auto ask = [](int tokens) {
    return PostOf(
        "/v1/completions",
        nlohmann::json({{"prompt", "x"}, {"max_tokens", tokens}, {"ignore_eos", true}}).dump(),
        absl::StrCat("x-request-id: number-", tokens, "\r\n"));
  };
  socket.Send(ask(7) + ask(3) + GetOf("/version") + ask(5));
  for (const int tokens : {7, 3, 0, 5}) {
    const HttpAnswer answer = socket.Read();
    ASSERT_EQ(answer.status, 200) << answer.body;
    if (tokens == 0) {
      EXPECT_TRUE(answer.Json().contains("version"));
      continue;
    }
    EXPECT_EQ(answer.Json()["usage"]["completion_tokens"], tokens);
    EXPECT_EQ(answer.Header("x-request-id"), absl::StrCat("number-", tokens));
  }
  // The body may wait for permission, and come in chunks.
  socket.Send(
      "POST /v1/completions HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\n"
      "transfer-encoding: chunked\r\n\r\n");
  EXPECT_EQ(socket.Read().status, 100);
  socket.Send("a\r\n{\"prompt\":\r\n14\r\n\"xyz\",\"max_tokens\":1\r\n1\r\n}\r\n0\r\n\r\n");
  EXPECT_EQ(socket.Read().status, 200);
  // HTTP/1.0 cannot take chunks: its stream ends with the connection.
  HttpSocket old(cluster->http_address());
  const std::string body = R"({"prompt":"x","max_tokens":3,"ignore_eos":true,"stream":true})";
  old.Send(absl::StrCat("POST /v1/completions HTTP/1.0\r\ncontent-length: ", body.size(),
                        "\r\n\r\n", body));
  while (old.ReadSome()) {
  }
  EXPECT_THAT(old.buffer(), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(old.buffer(), ::testing::EndsWith("data: [DONE]\n\n"));
  EXPECT_THAT(old.buffer(), ::testing::Not(HasSubstr("chunked")));
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

// The router's only HTTP thread goes on with others while a large text is tokenized.
TEST(HttpConnections, TokenizingDelaysNobody) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--http-threads=1"}));
  const nlohmann::json large = {{"prompt", std::string(4 << 20, 'x')}, {"return_token_strs", true}};
  HttpSocket first(cluster->http_address());
  ASSERT_TRUE(first.Send(PostOf("/tokenize", large.dump())));
  int answered = 0;
  for (; answered < 20; ++answered) {
    const HttpAnswer small =
        Ask(cluster->http_address(), PostOf("/tokenize", R"({"prompt":"abc"})"));
    ASSERT_EQ(small.status, 200) << small.body;
    pollfd readable = {.fd = first.fd(), .events = POLLIN, .revents = 0};
    if (::poll(&readable, 1, 0) > 0) break;
  }
  EXPECT_GT(answered, 0) << "no small request was answered before the large one";
  EXPECT_EQ(first.Read().Json()["count"], 4 << 20);
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST(HttpConnections, ClientsThatLeaveFreeBothLegs) {
  ASSERT_OK_AND_ASSIGN(auto cluster,
                       TestCluster::Start({"--engine=hash", "--prefill=1", "--kv-blocks=256",
                                           "--hash-step-time=5ms", "--local-prefill-tokens=0"}));
  for (const bool stream : {true, false}) {
    SCOPED_TRACE(stream);
    HttpSocket socket(cluster->http_address());
    ASSERT_TRUE(socket.Send(Endless(stream)));
    if (stream) {
      while (socket.buffer().find("finish_reason") == std::string::npos) {
        ASSERT_TRUE(socket.ReadSome());
      }
    } else {
      const auto missing = [](const v1::GetStatusResponse& status) -> std::string {
        return status.router().requests_running() == 1 ? "" : "not running";
      };
      ASSERT_OK(AwaitStatus(cluster->client(), absl::Seconds(10), missing).status());
    }
    socket.Close();
    EXPECT_OK(AwaitQuiet(cluster->client(), kFreedWithin).status());
  }
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST(HttpConnections, OneThatDoesNotReadDelaysNoOther) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=2048"}));
  // More events than the kernel's buffers hold.
  HttpSocket deaf(cluster->http_address());
  const std::string body = nlohmann::json({{"prompt", "p"},
                                           {"n", 16},
                                           {"max_tokens", 2000},
                                           {"ignore_eos", true},
                                           {"logprobs", 20},
                                           {"stream", true}})
                               .dump();
  ASSERT_TRUE(deaf.Send(PostOf("/v1/completions", body)));
  // Its request ends by itself (16,384 parts are buffered), while others are served.
  for (int i = 0; i < 20; ++i) {
    const HttpAnswer answer =
        Ask(cluster->http_address(), PostOf("/v1/completions", R"({"prompt":"q","max_tokens":4})"));
    EXPECT_EQ(answer.status, 200);
  }
  EXPECT_OK(AwaitQuiet(cluster->client(), absl::Seconds(60)).status());
  // What it would have read: a stream that says why it ended.
  const auto told = [&] {
    const absl::string_view all = deaf.buffer();
    return absl::StrContains(all.substr(all.size() - std::min<size_t>(all.size(), 4096)),
                             "reads too slowly");
  };
  while (!told() && deaf.ReadSome(20000)) {
  }
  EXPECT_TRUE(told()) << deaf.buffer().size() << " bytes";
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

// Any page can make a browser send a body without a type, unasked.
TEST(HttpConnections, ABodyWithoutATypeComesFromNoPage) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256"}));
  const std::string body = R"({"prompt":"x","max_tokens":1})";
  for (const bool from_page : {false, true}) {
    const char* origin = from_page ? "origin: https://elsewhere.example\r\n" : "";
    const HttpAnswer answer =
        Ask(cluster->http_address(),
            absl::StrCat("POST /v1/completions HTTP/1.1\r\nhost: x\r\n", origin,
                         "content-length: ", body.size(), "\r\n\r\n", body));
    EXPECT_EQ(answer.status, from_page ? 415 : 200) << answer.body;
  }
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST(HttpConnections, KeysAndQuotas) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/api-keys-", ::getpid());
  // printf %s secret-one | sha256sum; likewise secret-two.
  std::ofstream(path) << "# who may ask\n"
                         "one ea77193cc4e6f18656f3130e296203880c4b9b3772afc855211b82fdd46e9185\n"
                         "two cebdf378f2d2bd60d3e3693349e8f20f329daf11a276f849996f0a6377e2155b "
                         "requests_per_minute=2\n";
  ASSERT_OK_AND_ASSIGN(
      auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256", "--api-keys=" + path}));
  const std::string body = R"({"prompt":"x","max_tokens":1})";
  const HttpAnswer none = Ask(cluster->http_address(), PostOf("/v1/completions", body));
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(none.Json()["error"]["code"], "invalid_api_key");
  const HttpAnswer wrong = Ask(cluster->http_address(),
                               PostOf("/v1/completions", body, "authorization: Bearer nope\r\n"));
  EXPECT_EQ(wrong.status, 401);
  EXPECT_EQ(Ask(cluster->http_address(), GetOf("/v1/models")).status, 401);
  {  // The header decides: the server neither waits for the body nor keeps any of it.
    HttpSocket socket(cluster->http_address());
    socket.Send(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer nope\r\n"
        "content-length: 10000000\r\n\r\n{");
    const HttpAnswer early = socket.Read();
    EXPECT_EQ(early.status, 401) << early.body;
    EXPECT_EQ(early.Header("connection"), "close");
    EXPECT_FALSE(early.Header("x-request-id").empty());
  }
  // `curl -d` calls its body a form.
  EXPECT_EQ(Ask(cluster->http_address(),
                "POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret-one\r\n"
                "content-type: application/x-www-form-urlencoded\r\ncontent-length: " +
                    absl::StrCat(body.size(), "\r\n\r\n", body))
                .status,
            200);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Ask(cluster->http_address(),
                  PostOf("/v1/completions", body, "authorization: Bearer secret-one\r\n"))
                  .status,
              200);
  }
  for (int i = 0; i < 3; ++i) {
    const HttpAnswer answer =
        Ask(cluster->http_address(),
            PostOf("/v1/completions", body, "authorization: bearer secret-two\r\n"));
    EXPECT_EQ(answer.status, i < 2 ? 200 : 429) << answer.body;
    if (i == 2) {
      int seconds = 0;
      EXPECT_TRUE(absl::SimpleAtoi(answer.Header("retry-after"), &seconds));
      EXPECT_GE(seconds, 1);
      EXPECT_LE(seconds, 30);
    }
  }
  EXPECT_EQ(Ask(cluster->http_address(), GetOf("/health")).status, 200);
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

}  // namespace
}  // namespace tandem::testing
