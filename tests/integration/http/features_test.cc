// Goal: what clients of a whole cluster rely on beside plain answers: streams end whole when the
// router drains, trace ids reach headers and logs, keys hold over gRPC as over HTTP, a lost call is
// resumed at once under its own request id, constraints hold for every one of several answers, and
// pages of allowed origins, and of no others, may call from a browser.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <regex>
#include <set>
#include <thread>

#include "common/model/byte_vocabulary.h"
#include "common/model/hash_model.h"
#include "tandem/v1/client.grpc.pb.h"
#include "tests/testing/http_client.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(HttpFeatures, PropsSayWhatClientsOfLlamaCppAskFirst) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256",
                                                         "--served-model-name=mine"}));
  const HttpAnswer answer = Ask(cluster->http_address(), GetOf("/props"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json props = json::parse(answer.body);
  const json models = json::parse(Ask(cluster->http_address(), GetOf("/v1/models")).body);
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], models["data"][0]["max_model_len"]);
  EXPECT_EQ(props["model_alias"], "mine");
  // Errors and lists speak of the model by the name that clients know.
  EXPECT_EQ(models["data"][0]["root"], "mine");
  const HttpAnswer long_prompt =
      Ask(cluster->http_address(),
          PostOf("/v1/completions", json({{"prompt", std::string(40'000, 'x')}}).dump()));
  EXPECT_THAT(long_prompt.body, HasSubstr("the context of mine"));
  EXPECT_EQ(props["chat_template"], model::ByteVocabularyChatTemplate());
  EXPECT_NE(props["eos_token"], "");
  EXPECT_EQ(Ask(cluster->http_address(), PostOf("/props", "{}")).status, 405);
}

TEST(HttpFeatures, StreamsEndWholeWhenTheRouterDrains) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256",
                                                         "--hash-step-time=10ms"}));
  constexpr int kTokens = 60;
  const std::string post = PostOf("/v1/completions", json({{"prompt", "p"},
                                                           {"max_tokens", kTokens},
                                                           {"ignore_eos", true},
                                                           {"stream", true},
                                                           {"return_token_ids", true}})
                                                         .dump());
  std::vector<std::unique_ptr<HttpSocket>> sockets;
  for (int i = 0; i < 4; ++i) {
    sockets.push_back(std::make_unique<HttpSocket>(cluster->http_address()));
    ASSERT_TRUE(sockets.back()->Send(post));
  }
  for (const auto& socket : sockets) {
    while (!absl::StrContains(socket->buffer(), "finish_reason")) ASSERT_TRUE(socket->ReadSome());
  }
  EXPECT_EQ(cluster->Stop(), "exit code 0");
  for (const auto& socket : sockets) {
    const HttpAnswer answer = socket->Read();
    EXPECT_TRUE(answer.complete);
    const std::vector<std::string> events = answer.Events();
    ASSERT_GT(events.size(), 2u);
    EXPECT_EQ(events.back(), "[DONE]");
    size_t tokens = 0;
    for (const std::string& event : events) {
      if (event == "[DONE]") break;
      const json choice = json::parse(event)["choices"][0];
      tokens += choice.value("token_ids", json::array()).size();
    }
    EXPECT_EQ(tokens, static_cast<size_t>(kTokens));
  }
}

// The client has read little of an answer that the router's core has ended: the rest waits in the
// router.
TEST(HttpFeatures, UnreadGrpcStreamsEndWholeWhenTheRouterDrains) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256"}));
  const auto stub = v1::Tandem::NewStub(
      grpc::CreateChannel(cluster->address(), grpc::InsecureChannelCredentials()));
  constexpr int kTokens = 4000;
  v1::GenerateRequest request;
  request.set_text("p");
  request.mutable_sampling()->set_logprobs(20);
  request.mutable_stop()->set_max_tokens(kTokens);
  request.mutable_stop()->set_ignore_eos(true);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse part;
  ASSERT_TRUE(reader->Read(&part));
  while (Ask(cluster->http_address(), GetOf("/load")).Json()["server_load"] != 0) {
  }
  std::string ended;
  std::thread stops([&] { ended = cluster->Stop(); });
  EXPECT_THAT(cluster->AwaitLinesWith("the router is draining"), ::testing::SizeIs(1));
  int tokens = 0;
  bool finished = false;
  while (reader->Read(&part)) {
    tokens += part.delta().tokens_size();
    finished |= part.has_finished();
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(finished);
  EXPECT_EQ(tokens, kTokens);
  stops.join();
  EXPECT_EQ(ended, "exit code 0");
}

TEST(HttpFeatures, TraceIdsReachHeadersAndLogs) {
  ASSERT_OK_AND_ASSIGN(
      auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256", "--hash-step-time=20ms",
                                        "--log-level=debug"}));
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  const std::string parent = "00-" + trace + "-00f067aa0ba902b7-01";
  const std::string late =
      json({{"prompt", "p"}, {"max_tokens", 2000}, {"ignore_eos", true}, {"deadline_s", 0.2}})
          .dump();
  const HttpAnswer answer = Ask(cluster->http_address(),
                                PostOf("/v1/completions", late, "traceparent: " + parent + "\r\n"));
  EXPECT_EQ(answer.status, 504) << answer.body;
  EXPECT_EQ(answer.Header("traceparent"), parent);
  const HttpAnswer none =
      Ask(cluster->http_address(), GetOf("/version", "traceparent: 00-nothing\r\n"));
  EXPECT_EQ(none.status, 200);
  EXPECT_EQ(none.Header("traceparent"), "");

  const auto stub = v1::Tandem::NewStub(
      grpc::CreateChannel(cluster->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const std::string other = "00-" + std::string(31, '1') + "2-00f067aa0ba902b7-01";
  context.AddMetadata("traceparent", other);
  v1::GenerateRequest request;
  request.set_text("p");
  request.mutable_stop()->set_max_tokens(2000);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_deadline_s(0.2);
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse part;
  while (reader->Read(&part)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(cluster->Stop(), "exit code 0");
  EXPECT_FALSE(cluster->LinesWith("trace_id=" + trace).empty());
  const auto lines = cluster->LinesWith("trace_id=" + trace);
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return absl::StrContains(line, "took a leg");
  })) << "a node says it too";
  EXPECT_FALSE(cluster->LinesWith("trace_id=" + other.substr(3, 32)).empty());
}

// Bodies of more than 64 KiB are read and tokenized apart from the threads that serve connections:
// every kind of answer and refusal must come as it does for small ones.
TEST(HttpFeatures, LargeRequestsAreAnsweredAsSmallOnes) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=4096"}));
  const std::string address = cluster->http_address();
  // Spaces of the body that no field sees make a small request large.
  const auto both = [&](const std::string& path, json body) {
    const HttpAnswer small = Ask(address, PostOf(path, body.dump()));
    const HttpAnswer large = Ask(address, PostOf(path, body.dump() + std::string(100'000, ' ')));
    EXPECT_EQ(small.status, large.status) << path << large.body;
    return std::pair(small, large);
  };
  const auto text_of = [](const HttpAnswer& answer) {
    return json::parse(answer.body)["choices"].dump();
  };
  json completion = {{"prompt", {"one", "two", "three"}}, {"max_tokens", 8}, {"temperature", 0}};
  const auto answers = both("/v1/completions", completion);
  EXPECT_EQ(text_of(answers.first), text_of(answers.second));
  completion["prompt"][2] = "";
  EXPECT_EQ(both("/v1/completions", completion).second.status, 400);
  const json chat = {{"messages", {{{"role", "user"}, {"content", "hello"}}}},
                     {"max_tokens", 8},
                     {"stream", true}};
  const auto streams = both("/v1/chat/completions", chat);
  EXPECT_THAT(streams.second.body, HasSubstr("data: [DONE]"));
  EXPECT_EQ(both("/v1/messages", chat).second.status, 200);
  EXPECT_EQ(both("/v1/responses", {{"input", "hello"}, {"max_output_tokens", 8}}).second.status,
            200);
  EXPECT_EQ(both("/api/chat", chat).second.status, 200);
  EXPECT_EQ(both("/tokenize", {{"prompt", "hello"}}).second.status, 200);
  EXPECT_EQ(both("/v1/chat/completions", {{"messages", 7}}).second.status, 400);
  // As many messages as the context has tokens are a prompt that is too long; more are not read.
  const auto messages = [&](size_t count) {
    json list = json::array();
    for (size_t i = 0; i < count; ++i) list.push_back({{"role", "user"}, {"content", "a"}});
    return Ask(address, PostOf("/v1/chat/completions", json{{"messages", list}}.dump())).body;
  };
  constexpr size_t kContext = model::kHashModelContextTokens;
  EXPECT_THAT(messages(kContext), Not(HasSubstr("messages: 32768 messages")));
  EXPECT_THAT(messages(kContext + 1), HasSubstr(absl::StrCat("messages: ", kContext + 1)));
}

TEST(HttpFeatures, KeysAndQuotasHoldOverGrpc) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/grpc-keys-", ::getpid());
  // printf %s secret-one | sha256sum; likewise the others.
  std::ofstream(path) << "one ea77193cc4e6f18656f3130e296203880c4b9b3772afc855211b82fdd46e9185\n"
                         "two cebdf378f2d2bd60d3e3693349e8f20f329daf11a276f849996f0a6377e2155b "
                         "tokens_per_minute=10\n"
                         "three 2a32a097d0e385878ded206d7c22422ba962802dce9707796c3e10324a6b7478 "
                         "tokens_per_minute=40\n";
  ASSERT_OK_AND_ASSIGN(
      auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256", "--api-keys=" + path}));
  const auto stub = v1::Tandem::NewStub(
      grpc::CreateChannel(cluster->address(), grpc::InsecureChannelCredentials()));
  const auto generate = [&stub](const std::string& authorization, int n = 1) {
    grpc::ClientContext context;
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    v1::GenerateRequest request;
    request.set_text("some text");
    request.set_n(n);
    request.mutable_stop()->set_max_tokens(4);
    request.mutable_stop()->set_ignore_eos(true);
    const auto reader = stub->Generate(&context, request);
    v1::GenerateResponse part;
    while (reader->Read(&part)) {
    }
    return reader->Finish();
  };
  const grpc::Status none = generate("");
  EXPECT_EQ(none.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(none.error_message(), HasSubstr("authorization"));
  EXPECT_EQ(generate("Bearer nope").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(generate("Bearer secret-one").ok());
  // 9 prompt tokens and 4 more: the quota is used up by the first.
  EXPECT_TRUE(generate("Bearer secret-two").ok());
  const grpc::Status spent = generate("Bearer secret-two");
  EXPECT_EQ(spent.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(spent.error_message(), HasSubstr("quota"));
  EXPECT_FALSE(spent.error_details().empty());

  // Four answers share their prompt: 25 tokens, not 52.
  EXPECT_TRUE(generate("Bearer secret-three", 4).ok());
  EXPECT_TRUE(generate("Bearer secret-three").ok());

  // The command line's client sends the key it is given.
  const auto client = cli::Client::Create(cluster->address(), "secret-one");
  EXPECT_OK(client->GetModel().status());
  EXPECT_EQ(client->GetTrace("none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(cluster->client().GetTrace("none").status().code(), absl::StatusCode::kUnauthenticated);
  grpc::ClientContext context;
  v1::GetModelResponse model;
  EXPECT_EQ(stub->GetModel(&context, {}, &model).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  // What /metrics tells is open.
  EXPECT_OK(cluster->client().GetStatus(absl::Seconds(10)).status());
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST(HttpFeatures, AResumedCallTakesThePlaceOfOneThatStillRuns) {
  ASSERT_OK_AND_ASSIGN(auto cluster,
                       TestCluster::Start({"--engine=hash", "--kv-blocks=1024", "--prefill=1",
                                           "--hash-step-time=5ms", "--local-prefill-tokens=0"}));
  constexpr int kTokensOfCall = 20, kCalls = 3;
  v1::GenerateRequest request;
  request.set_text("a prompt of some length");
  request.mutable_sampling()->set_seed(17);
  request.mutable_stop()->set_max_tokens(kTokensOfCall * kCalls);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_return_token_ids(true);
  const Answer whole = cluster->Generate(request);
  ASSERT_OK(whole.status);

  // Each call is still running, unread, when the next one resumes what it gave.
  request.set_request_id("mine");
  request.mutable_stop()->set_max_tokens(30000);
  std::vector<int32_t> tokens;
  std::vector<v1::FinishReason> ends;
  const std::function<absl::Status(int)> run = [&](int call) {
    v1::GenerateRequest mine = request;
    mine.set_resume_from_token(static_cast<int>(tokens.size()));
    bool left = false;
    return cli::Client::Create(cluster->address())
        ->Generate(mine, [&](const v1::GenerateResponse& part) {
          if (part.has_finished()) ends.push_back(part.finished().reason());
          for (const auto& token : part.delta().tokens()) {
            if (left || static_cast<int>(tokens.size()) == kTokensOfCall * (call + 1)) break;
            EXPECT_EQ(token.index(), static_cast<int>(tokens.size()));
            tokens.push_back(token.token_id());
          }
          if (left || static_cast<int>(tokens.size()) < kTokensOfCall * (call + 1)) return true;
          left = true;
          if (call + 1 == kCalls) return false;
          EXPECT_EQ(cluster->Generate(request).status.code(), absl::StatusCode::kAlreadyExists);
          EXPECT_OK(run(call + 1));
          return true;
        });
  };
  EXPECT_OK(run(0));
  EXPECT_EQ(tokens, whole.tokens);
  EXPECT_THAT(ends, ::testing::ElementsAre(v1::FINISH_REASON_ABORTED, v1::FINISH_REASON_ABORTED));
  EXPECT_OK(AwaitQuiet(cluster->client(), absl::Seconds(60)).status());
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST(HttpFeatures, ConstraintsHoldForEachOfSeveralAnswers) {
  std::set<std::vector<std::string>> seen;
  for (const std::vector<std::string>& topology :
       {std::vector<std::string>{"--single-process", "--prefill=0"},
        std::vector<std::string>{"--prefill=1", "--decode=2", "--local-prefill-tokens=0"}}) {
    std::vector<std::string> flags = topology;
    flags.insert(flags.end(), {"--engine=hash", "--kv-blocks=256"});
    ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start(flags));
    const HttpAnswer answer =
        Ask(cluster->http_address(), PostOf("/v1/completions", json({{"prompt", "several answers"},
                                                                     {"n", 4},
                                                                     {"seed", 5},
                                                                     {"temperature", 1.0},
                                                                     {"max_tokens", 20},
                                                                     {"guided_regex", "[a-f]{8}"}})
                                                                   .dump()));
    ASSERT_EQ(answer.status, 200) << answer.body;
    std::vector<std::string> texts;
    const json whole = answer.Json();
    for (const json& choice : whole["choices"]) texts.push_back(choice["text"]);
    ASSERT_EQ(texts.size(), 4u);
    for (const std::string& text : texts) {
      EXPECT_TRUE(std::regex_match(text, std::regex("[a-f]{8}"))) << text;
    }
    seen.insert(texts);
    EXPECT_EQ(cluster->Stop(), "exit code 0");
  }
  EXPECT_EQ(seen.size(), 1u) << "topologies differ";
}

TEST(HttpFeatures, PagesOfAllowedOriginsMayCall) {
  const std::string body = R"({"prompt":"x","max_tokens":2,"stream":true})";
  const std::string wanted =
      "access-control-request-method: POST\r\n"
      "access-control-request-headers: authorization,content-type\r\n";
  const auto preflight = [&](const std::string& origin) {
    return "OPTIONS /v1/completions HTTP/1.1\r\nhost: t\r\norigin: " + origin + "\r\n" + wanted +
           "\r\n";
  };
  const std::string chat = "https://chat.example", other = "https://other.example";
  ASSERT_OK_AND_ASSIGN(auto cluster,
                       TestCluster::Start({"--engine=hash", "--kv-blocks=256",
                                           "--allowed-origins=https://app.example," + chat}));
  const HttpAnswer asked = Ask(cluster->http_address(), preflight(chat));
  EXPECT_EQ(asked.status, 200);
  EXPECT_EQ(asked.Header("access-control-allow-origin"), chat);
  EXPECT_EQ(asked.Header("access-control-allow-methods"), "POST");
  EXPECT_EQ(asked.Header("access-control-allow-headers"), "authorization,content-type");
  EXPECT_EQ(asked.Header("vary"), "origin");
  // The answer itself, whole or streamed, and what the router's core answers.
  const HttpAnswer streamed =
      Ask(cluster->http_address(), PostOf("/v1/completions", body, "origin: " + chat + "\r\n"));
  EXPECT_EQ(streamed.status, 200);
  EXPECT_EQ(streamed.Header("access-control-allow-origin"), chat);
  for (const char* path : {"/v1/models", "/health", "/none"}) {
    const HttpAnswer got = Ask(cluster->http_address(), GetOf(path, "origin: " + chat + "\r\n"));
    EXPECT_EQ(got.status, path == std::string("/none") ? 404 : 200);
    EXPECT_EQ(got.Header("access-control-allow-origin"), chat) << path;
  }
  const HttpAnswer refused = Ask(cluster->http_address(), preflight(other));
  EXPECT_EQ(refused.status, 405);
  EXPECT_EQ(refused.Header("access-control-allow-origin"), "");
  EXPECT_EQ(Ask(cluster->http_address(), GetOf("/v1/models", "origin: " + other + "\r\n"))
                .Header("access-control-allow-origin"),
            "");
  EXPECT_EQ(cluster->Stop(), "exit code 0");

  ASSERT_OK_AND_ASSIGN(
      cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256", "--allowed-origins=*"}));
  EXPECT_EQ(Ask(cluster->http_address(), preflight(other)).Header("access-control-allow-origin"),
            "*");
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

// A page whose site's name was led to this machine is, to its browser, the router's own page.
TEST(HttpFeatures, NoPageOfAForeignNameIsServedWithoutKeys) {
  const auto asked = [](const std::string& address, const std::string& host,
                        const std::string& path, const std::string& origin = "") {
    const std::string headers = absl::StrCat(" HTTP/1.1\r\nhost: ", host, "\r\n",
                                             origin.empty() ? "" : "origin: " + origin + "\r\n");
    const std::string body = R"({"prompt":"x","max_tokens":2})";
    if (path != "/v1/completions") return Ask(address, "GET " + path + headers + "\r\n");
    return Ask(address, absl::StrCat("POST ", path, headers, "content-type: application/json\r\n",
                                     "content-length: ", body.size(), "\r\n\r\n", body));
  };
  ASSERT_OK_AND_ASSIGN(auto cluster,
                       TestCluster::Start({"--engine=hash", "--kv-blocks=256",
                                           "--allowed-origins=https://chat.example"}));
  const std::string http = cluster->http_address();
  const std::string port = http.substr(http.rfind(':'));
  for (const char* path : {"/", "/v1/models", "/load", "/metrics", "/v1/completions"}) {
    const HttpAnswer refused = asked(http, "evil.example" + port, path);
    EXPECT_EQ(refused.status, 403) << path;
    EXPECT_THAT(refused.body, HasSubstr("host: evil.example, expected an address")) << path;
    EXPECT_EQ(asked(http, "evil.example" + port, path, "http://evil.example" + port).status, 403);
    // As programs call it, and the page that the router itself serves.
    for (const std::string& host :
         {http, "localhost" + port, "router" + port, std::string("chat.example")}) {
      EXPECT_NE(asked(http, host, path).status, 403) << path << " of " << host;
      EXPECT_NE(asked(http, host, path, "http://" + host).status, 403) << path << " of " << host;
    }
    EXPECT_EQ(asked(http, "localhost" + port, path).status, 200) << path;
  }
  EXPECT_EQ(cluster->Stop(), "exit code 0");

  // Where other machines reach the router, programs call it by any name.
  ASSERT_OK_AND_ASSIGN(
      cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256", "--http=0.0.0.0:0"}));
  const std::string open = cluster->http_address();
  const std::string local = "127.0.0.1" + open.substr(open.rfind(':'));
  const std::string name = "router.example";
  for (const char* path : {"/v1/models", "/v1/completions"}) {
    EXPECT_EQ(asked(local, name, path).status, 200) << path;
    EXPECT_EQ(asked(local, name, path, "http://" + name).status, 403) << path;
  }
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST(HttpFeatures, TheLongestServedIsWhatTheNodesHold) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=20"}));
  constexpr int kTokens = 20 * 32;
  const std::string& http = cluster->http_address();
  EXPECT_EQ(Ask(http, GetOf("/v1/models")).Json()["data"][0]["max_model_len"], kTokens);
  EXPECT_EQ(Ask(http, GetOf("/v1/models/hash")).Json()["max_model_len"], kTokens);
  EXPECT_EQ(Ask(http, PostOf("/tokenize", R"({"prompt":"ab"})")).Json()["max_model_len"], kTokens);
  ASSERT_OK_AND_ASSIGN(const v1::GetModelResponse model, cluster->client().GetModel());
  EXPECT_EQ(model.context_tokens(), kTokens);
  for (const int tokens : {kTokens, kTokens + 1}) {
    SCOPED_TRACE(tokens);
    const json body = {{"prompt", std::string(static_cast<size_t>(tokens) - 1, 'p')},
                       {"max_tokens", 1}};
    const HttpAnswer answer = Ask(http, PostOf("/v1/completions", body.dump()));
    EXPECT_EQ(answer.status, tokens == kTokens ? 200 : 400) << answer.body;
    if (answer.status != 400) continue;
    EXPECT_EQ(answer.Json()["error"]["code"], "context_length_exceeded");
  }
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST(HttpFeatures, ToolChoiceDecidesTheFormOfTheAnswer) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256"}));
  const auto tool = [](const char* name, const std::vector<std::string>& values) -> json {
    return {{"type", "function"},
            {"function",
             {{"name", name},
              {"parameters",
               {{"type", "object"},
                {"properties", {{"value", {{"enum", values}}}}},
                {"required", {"value"}},
                {"additionalProperties", false}}}}}};
  };
  json body = {{"messages", {{{"role", "user"}, {"content", "call one"}}}},
               {"tools", {tool("first", {"x", "y"}), tool("second", {"z", "w"})}},
               {"max_tokens", 400},
               {"seed", 3}};
  const auto ask = [&](const json& choice) {
    body["tool_choice"] = choice;
    const HttpAnswer answer =
        Ask(cluster->http_address(), PostOf("/v1/chat/completions", body.dump()));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.Json()["choices"][0];
  };
  const json named = ask({{"type", "function"}, {"function", {{"name", "second"}}}});
  ASSERT_EQ(named["message"]["tool_calls"].size(), 1u) << named;
  const json call = named["message"]["tool_calls"][0]["function"];
  EXPECT_EQ(call["name"], "second");
  const json arguments = json::parse(call["arguments"].get<std::string>());
  EXPECT_TRUE(arguments["value"] == "z" || arguments["value"] == "w") << arguments;

  const json required = ask("required");
  // As many calls as the tokens allow; those that are whole follow their own schemas.
  for (const json& one : required["message"].value("tool_calls", json::array())) {
    const json function = one["function"];
    const json value = json::parse(function["arguments"].get<std::string>())["value"];
    const bool first = function["name"] == "first";
    EXPECT_TRUE(first ? value == "x" || value == "y" : value == "z" || value == "w") << function;
  }
  EXPECT_FALSE(required["message"].value("tool_calls", json::array()).empty()) << required;
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

}  // namespace
}  // namespace tandem::testing
