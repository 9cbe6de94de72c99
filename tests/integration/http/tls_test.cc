// Goal: with --tls-cert both ports speak TLS and answer as without it; who does not trust the
// certificate, or speaks no TLS, gets a clear error; the command-line tools take --tls-ca.
#include <gmock/gmock.h>

#include "tests/testing/https_client.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

// Whole answers and streams.
void ExpectSameOverHttp(const TestCluster& cluster, const Certificate& certificate,
                        const TestCluster& plain) {
  for (const bool stream : {false, true}) {
    const std::string request = PostOf("/v1/completions", nlohmann::json({{"prompt", "under TLS"},
                                                                          {"max_tokens", 20},
                                                                          {"temperature", 0},
                                                                          {"ignore_eos", true},
                                                                          {"stream", stream}})
                                                              .dump());
    HttpsSocket under_tls(cluster.http_address(), certificate.path());
    HttpSocket without(plain.http_address());
    ASSERT_TRUE(under_tls.Send(request) && without.Send(request));
    const HttpAnswer answer = under_tls.Read(), expected = without.Read();
    ASSERT_EQ(answer.status, 200) << answer.body;
    if (stream) {
      EXPECT_EQ(answer.Events().size(), expected.Events().size());
      EXPECT_EQ(answer.Events().back(), "[DONE]");
    } else {
      EXPECT_EQ(answer.Json()["choices"], expected.Json()["choices"]);
    }
  }
}

// A load over TLS, on new and reused connections; and certificates that are not trusted.
void ExpectLoads(const TestCluster& cluster, const Certificate& certificate,
                 const Certificate& stranger) {
  const auto load = [](const std::string& target, const std::vector<std::string>& more) {
    std::vector<std::string> args = {"tandem", "bench", "serve", "--target", target};
    for (const char* arg :
         {"--requests=24", "--concurrency=3", "--prompt-tokens=64", "--output-tokens=8"}) {
      args.push_back(arg);
    }
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram(args);
  };
  const std::string port =
      cluster.http_address().substr(cluster.http_address().rfind(':'));  // ":…"
  const std::vector<std::string> believed = {"--tls-ca", certificate.path()};
  for (const char* target : {"https://127.0.0.1", "https://localhost"}) {
    const ProgramRun loaded = load(target + port, believed);
    EXPECT_EQ(loaded.exit_code, 0) << loaded.output;
    EXPECT_THAT(loaded.output, HasSubstr("24 answered, 0 failed"));
  }
  // Another authority; another name (of the same address) than the certificate's; no authority.
  const std::vector<std::string> other = {"--tls-ca", stranger.path()};
  for (const ProgramRun& refused :
       {load("https://127.0.0.1" + port, other), load("https://127.1" + port, believed),
        load("https://127.0.0.1" + port, {})}) {
    EXPECT_NE(refused.exit_code, 0);
    EXPECT_THAT(refused.output, HasSubstr("certificate verify failed"));
  }
}

TEST(HttpTls, BothPortsAnswerAsWithout) {
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / absl::StrCat("tandem-tls-cluster-", ::getpid());
  std::filesystem::create_directories(folder);
  const Certificate certificate(folder), stranger(folder, "stranger");
  ASSERT_OK_AND_ASSIGN(const auto plain, TestCluster::Start({"--engine=hash", "--prefill=1"}));
  ASSERT_OK_AND_ASSIGN(
      const auto cluster,
      TestCluster::Start({"--engine=hash", "--prefill=1", "--tls-cert=" + certificate.path(),
                          "--tls-key=" + certificate.key_path()}));
  ExpectSameOverHttp(*cluster, certificate, *plain);
  // gRPC: the right authority, a wrong one, none.
  v1::GenerateRequest request;
  request.set_text("under TLS");
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(20);
  const auto ask = [&](const std::string& authority) {
    auto client = cli::Client::Connect(cluster->address(), {.tls = {.authorities = authority}});
    EXPECT_OK(client.status());
    return Collect(**client, request);
  };
  const Answer answer = ask(certificate.path());
  ASSERT_OK(answer.status);
  EXPECT_EQ(answer.text, plain->Generate(request).text);
  EXPECT_EQ(ask(stranger.path()).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ask("").status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(
          cli::Client::Connect("x:1", {.tls = {.authorities = "/nowhere"}}).status().message()),
      HasSubstr("tls-ca: cannot read /nowhere"));
  // The tools.
  const ProgramRun status = RunProgram(
      {"tandem", "status", "--router", cluster->address(), "--tls-ca", certificate.path()});
  EXPECT_EQ(status.exit_code, 0) << status.output;
  EXPECT_THAT(status.output, HasSubstr("decode"));
  ExpectLoads(*cluster, certificate, stranger);
  const ProgramRun refused =
      RunProgram({"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0",
                  "--tls-cert", certificate.path(), "--tls-key", stranger.key_path()});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.output, HasSubstr("tls-key: "));
  EXPECT_EQ(cluster->Stop(), "exit code 0");
  EXPECT_EQ(plain->Stop(), "exit code 0");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tandem::testing
