// Goal: answers under constraints, served by clusters of real processes on the hash engine: each is
// of the form asked for, ends once nothing can follow, and has the same tokens in one process, on
// prefill and decode nodes, and after its decode node was killed in the middle. What is not
// supported is refused before anything is placed, with the keyword's name.
#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/match.h"
#include "common/guided/compile.h"
#include "common/guided/state_graph.h"
#include "common/rpc/convert.h"
#include "nlohmann/json.hpp"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<v1::GuidedDecoding> Constraints() {
  std::vector<v1::GuidedDecoding> all(7);
  all[0].set_json_schema(R"({"type": "object", "properties": {"name": {"type": "string",
    "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["red", "green", 3]}, "maxItems": 5}},
    "required": ["name", "age"], "additionalProperties": false})");
  all[1].set_json_object(true);
  all[2].set_regex("[a-z]{3,8}(?:-[0-9]{2}){1,4}!?");
  all[3].mutable_choice()->add_options("yes");
  all[3].mutable_choice()->add_options("no");
  all[3].mutable_choice()->add_options("not sure");
  all[4].set_grammar("root ::= \"(\" root* \")\" | [a-z]{1,3}");
  all[5].set_json_schema(R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties":
    {"v": {"type": "boolean"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/t"},
    "maxItems": 2}}, "required": ["v"], "additionalProperties": false}}})");
  all[6].set_regex("[\xC3\xA0-\xC3\xBF]{5}");  // no printable ASCII at all
  return all;
}

std::vector<v1::GenerateRequest> Requests() {
  std::vector<v1::GenerateRequest> requests;
  uint64_t seed = 1;
  for (const v1::GuidedDecoding& guided : Constraints()) {
    for (const double temperature : {0.0, 1.0, 1.0}) {
      v1::GenerateRequest request;
      for (uint64_t i = 0; i < 20 + 30 * (seed % 5); ++i) {
        request.mutable_tokens()->add_ids(static_cast<int32_t>((seed * 7 + i * i) % 256));
      }
      *request.mutable_guided() = guided;
      request.mutable_sampling()->set_temperature(temperature);
      request.mutable_sampling()->set_seed(seed++);
      request.mutable_stop()->set_max_tokens(400);
      request.set_return_token_ids(true);
      requests.push_back(request);
    }
  }
  // Neither may keep an answer going that is whole.
  requests[6].mutable_stop()->set_ignore_eos(true);
  requests[9].mutable_stop()->set_min_tokens(30);
  return requests;
}

void ExpectFits(const v1::GenerateRequest& request, const Answer& answer) {
  SCOPED_TRACE(answer.text);
  const auto program = guided::Compile(rpc::FromWire(request.guided()), 0);
  ASSERT_OK(program.status());
  guided::StateGraph graph(*program);
  guided::ConfigId config = graph.start();
  for (const char byte : answer.text) config = graph.Step(config, static_cast<uint8_t>(byte));
  if (answer.finished.reason() == v1::FINISH_REASON_STOP) {
    EXPECT_TRUE(graph.MayEnd(config));
    if (request.guided().has_json_schema() || request.guided().json_object()) {
      EXPECT_FALSE(nlohmann::json::parse(answer.text, nullptr, false).is_discarded());
    }
  } else {
    EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_NE(config, guided::kDeadConfig);
    EXPECT_EQ(answer.tokens.size(), 400u);
  }
}

TEST(Guided, EveryTopologyGivesTheSameAnswersOfTheFormAskedFor) {
  const std::vector<v1::GenerateRequest> requests = Requests();
  const std::vector<std::vector<std::string>> topologies = {
      {"--single-process", "--prefill=0", "--decode=1"},
      {"--prefill=1", "--decode=1", "--local-prefill-tokens=0"},
      {"--prefill=2", "--decode=2", "--transport=tcp", "--max-batch-tokens=40"}};
  std::vector<Answer> reference;
  for (std::vector<std::string> flags : topologies) {
    flags.insert(flags.end(), {"--engine=hash", "--kv-blocks=512"});
    ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start(flags));
    std::vector<Answer> answers;
    int stopped = 0;
    for (const v1::GenerateRequest& request : requests) {
      answers.push_back(cluster->Generate(request));
      ASSERT_OK(answers.back().status);
      ExpectFits(request, answers.back());
      stopped += answers.back().finished.reason() == v1::FINISH_REASON_STOP ? 1 : 0;
    }
    EXPECT_GT(stopped, 12);
    for (size_t i = 0; i < reference.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, reference[i].tokens) << "request " << i;
      EXPECT_EQ(answers[i].text, reference[i].text) << "request " << i;
    }
    if (reference.empty()) reference = std::move(answers);
    EXPECT_EQ(cluster->Stop(), "exit code 0");
  }
}

// The pids of the decode nodes below `parent`.
std::vector<pid_t> DecodeNodes(pid_t parent) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream stat(entry.path() / "stat"), command(entry.path() / "cmdline");
    const std::string fields((std::istreambuf_iterator<char>(stat)), {});
    const std::string line((std::istreambuf_iterator<char>(command)), {});
    const size_t name_end = fields.rfind(')');
    if (name_end == fields.npos || name_end + 4 > fields.size()) continue;
    if (std::atoi(fields.c_str() + name_end + 4) == parent &&
        absl::StrContains(line, "tandem-decode-node")) {
      found.push_back(pid);
    }
  }
  return found;
}

TEST(Guided, AnAnswerGoesOnInItsConstraintAfterItsDecodeNodeDied) {
  ASSERT_OK_AND_ASSIGN(auto cluster,
                       TestCluster::Start({"--engine=hash", "--prefill=1", "--decode=1",
                                           "--kv-blocks=512", "--hash-step-time=4ms"}));
  v1::GenerateRequest request;
  request.set_text("Tell me a story about two machines.");
  request.mutable_guided()->set_regex("(?:[a-z]{1,9} ){60}end");
  request.mutable_sampling()->set_seed(5);
  request.mutable_stop()->set_max_tokens(2000);
  request.set_return_token_ids(true);
  const Answer whole = cluster->Generate(request);
  ASSERT_OK(whole.status);
  EXPECT_EQ(whole.finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_TRUE(absl::EndsWith(whole.text, " end")) << whole.text;
  ASSERT_GT(whole.tokens.size(), 120u);

  Answer interrupted;
  size_t killed = 0;
  interrupted.status = cluster->client().Generate(request, [&](const v1::GenerateResponse& part) {
    if (part.has_finished()) interrupted.finished = part.finished();
    for (const auto& token : part.delta().tokens()) interrupted.tokens.push_back(token.token_id());
    interrupted.text += part.delta().text();
    if (killed == 0 && interrupted.tokens.size() > 50) {
      for (const pid_t pid : DecodeNodes(cluster->pid())) {
        kill(pid, SIGKILL);
        ++killed;
      }
    }
    return true;
  });
  ASSERT_OK(interrupted.status);
  EXPECT_EQ(killed, 1u);
  EXPECT_GE(interrupted.finished.route().attempts(), 2);
  EXPECT_EQ(interrupted.tokens, whole.tokens);
  EXPECT_EQ(interrupted.text, whole.text);
}

// Whatever a tool's parameters say of their type, an answer that must call it does, with an object.
TEST(Guided, ADemandedCallComesWithAnObject) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=512"}));
  for (const char* parameters : {"{}", R"({"properties":{"x":{"maxLength":5}}})"}) {
    for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"f"}})"}) {
      for (int seed = 0; seed < 10; ++seed) {
        const std::string body = absl::StrCat(
            R"({"messages":[{"role":"user","content":"u"}],"max_tokens":300,"seed":)", seed,
            R"(,"tools":[{"type":"function","function":{"name":"f","parameters":)", parameters,
            R"(}}],"tool_choice":)", choice, "}");
        SCOPED_TRACE(body);
        const HttpAnswer answer =
            Ask(cluster->http_address(), PostOf("/v1/chat/completions", body));
        SCOPED_TRACE(answer.body);
        ASSERT_EQ(answer.status, 200);
        const auto message = answer.Json()["choices"][0];
        ASSERT_GE(message["message"]["tool_calls"].size(), 1u);
        for (const auto& call : message["message"]["tool_calls"]) {
          const std::string arguments = call["function"]["arguments"].get<std::string>();
          EXPECT_TRUE(absl::StartsWith(arguments, "{"));
          // A call that the answer's length cut off is no JSON.
          if (message["finish_reason"] == "length") continue;
          EXPECT_TRUE(nlohmann::json::parse(arguments, nullptr, false).is_object());
        }
      }
    }
  }
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

// Each of these takes the compiler a good part of its budget. They are compiled one by one on a
// thread of their own: a request without a constraint is answered while most of them still wait,
// and so is one whose constraint is known.
TEST(Guided, CostlyConstraintsHoldNobodyUp) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--single-process",
                                                         "--prefill=0", "--kv-blocks=64"}));
  v1::GenerateRequest known;
  known.set_text("x");
  known.mutable_guided()->set_regex("[a-z]{3}");
  ASSERT_OK(cluster->Generate(known).status);
  constexpr int kCostly = 12;
  std::atomic<int> answered = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < kCostly; ++i) {
    clients.emplace_back([&, i] {
      v1::GenerateRequest request;
      request.set_text("x");
      std::string letters(static_cast<size_t>(i), 'x');
      for (int j = 0; j < 10000; ++j) letters += "\\p{L}";
      request.mutable_guided()->set_regex(letters);
      const Answer answer = cluster->Generate(request);
      EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument) << answer.status;
      ++answered;
    });
  }
  v1::GenerateRequest plain;
  plain.set_text("x");
  plain.mutable_stop()->set_max_tokens(2);
  EXPECT_OK(cluster->Generate(plain).status);
  EXPECT_OK(cluster->Generate(known).status);
  EXPECT_LT(answered, kCostly);
  for (std::thread& client : clients) client.join();
}

TEST(Guided, RefusesWhatItDoesNotSupportByName) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--single-process",
                                                         "--prefill=0", "--kv-blocks=64"}));
  const auto refused = [&](const v1::GuidedDecoding& guided) {
    v1::GenerateRequest request;
    request.set_text("x");
    *request.mutable_guided() = guided;
    const Answer answer = cluster->Generate(request);
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument) << answer.status;
    return std::string(answer.status.message());
  };
  v1::GuidedDecoding guided;
  EXPECT_THAT(refused(guided), HasSubstr("guided: no constraint"));
  guided.set_json_schema(R"({"properties": {"a": {"contains": {"const": 1}}}})");
  EXPECT_THAT(refused(guided), HasSubstr("guided: json_schema: #/properties/a: contains"));
  guided.set_json_schema("{");
  EXPECT_THAT(refused(guided), HasSubstr("not valid JSON"));
  guided.set_regex("(a)\\1");
  EXPECT_THAT(refused(guided), HasSubstr("backreferences"));
  guided.set_grammar("root ::= missing");
  EXPECT_THAT(refused(guided), HasSubstr("rule missing"));
  guided.set_grammar("root ::= (\"a\"?){1100}");
  EXPECT_THAT(refused(guided), HasSubstr("too ambiguous"));
  guided.set_grammar("root ::= (\"a\"?){3000}");
  EXPECT_THAT(refused(guided), HasSubstr("more than 2000000 edges"));
  guided.mutable_choice();
  EXPECT_THAT(refused(guided), HasSubstr("choice: 0 options"));
  // Bytes that the mask leaves none of.
  v1::GenerateRequest request;
  request.set_text("x");
  request.mutable_guided()->set_regex("[a-z]+");
  request.mutable_sampling()->add_allowed_token_ids('7');
  EXPECT_THAT(std::string(cluster->Generate(request).status.message()),
              HasSubstr("allowed_token_ids"));
  // Or leaves none of after some tokens: the request ends as it is, and is not tried elsewhere.
  request.mutable_guided()->set_regex("77x");
  const Answer stuck = cluster->Generate(request);
  EXPECT_EQ(stuck.status.code(), absl::StatusCode::kInvalidArgument) << stuck.status;
  EXPECT_THAT(std::string(stuck.status.message()), HasSubstr("allowed_token_ids"));
  EXPECT_THAT(std::string(stuck.status.message()), Not(HasSubstr("attempts")));
  // The cluster serves on.
  request.mutable_guided()->set_regex("[a-z]+");
  request.mutable_sampling()->clear_allowed_token_ids();
  request.mutable_stop()->set_max_tokens(4);
  EXPECT_OK(cluster->Generate(request).status);
}

}  // namespace
}  // namespace tandem::testing
