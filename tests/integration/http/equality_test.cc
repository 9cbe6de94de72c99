// Goal: an answer over HTTP is the answer over gRPC, token for token and byte for byte, streamed or
// whole, from a disaggregated cluster and from one process; its usage is exact.
#include <random>

#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using nlohmann::json;

constexpr int kRequests = 40;

struct Case {
  json body;
  v1::GenerateRequest request;
};

std::vector<Case> RandomCases(std::mt19937_64& random) {
  std::vector<Case> cases(kRequests);
  for (Case& one : cases) {
    std::vector<int> ids(1 + random() % 700);
    for (int& id : ids) id = static_cast<int>(random() % 256);
    one.body = {{"prompt", ids},       {"max_tokens", 1 + random() % 40},
                {"seed", random()},    {"temperature", random() % 2 == 0 ? 0.0 : 0.9},
                {"top_p", 0.95},       {"top_k", 30},
                {"logprobs", 2},       {"return_token_ids", true},
                {"ignore_eos", true},  {"repetition_penalty", 1.1},
                {"stop", {"ab", "q~"}}};
    v1::GenerateRequest& request = one.request;
    request.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
    v1::SamplingParams& sampling = *request.mutable_sampling();
    sampling.set_seed(one.body["seed"]);
    sampling.set_temperature(one.body["temperature"]);
    sampling.set_top_p(0.95);
    sampling.set_top_k(30);
    sampling.set_repetition_penalty(1.1);
    sampling.set_logprobs(2);
    request.mutable_stop()->set_max_tokens(one.body["max_tokens"]);
    request.mutable_stop()->set_ignore_eos(true);
    request.mutable_stop()->add_stop("ab");
    request.mutable_stop()->add_stop("q~");
    request.set_return_token_ids(true);
  }
  return cases;
}

void ExpectSame(const json& choice, const Answer& answer, const json& usage) {
  EXPECT_EQ(choice["text"], answer.text);
  EXPECT_EQ(choice["token_ids"].get<std::vector<int32_t>>(), answer.tokens);
  const bool stopped = answer.finished.reason() == v1::FINISH_REASON_STOP;
  EXPECT_EQ(choice["finish_reason"], stopped ? "stop" : "length");
  std::vector<float> logprobs;
  for (const json& value : choice["logprobs"]["token_logprobs"]) logprobs.push_back(value);
  EXPECT_EQ(logprobs, answer.logprobs);
  EXPECT_EQ(usage["prompt_tokens"], answer.finished.usage().prompt_tokens());
  EXPECT_EQ(usage["completion_tokens"], answer.finished.usage().output_tokens());
  EXPECT_EQ(usage["total_tokens"].get<int>(),
            usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
}

// The events of a streamed completion, joined up as one choice.
json Joined(const HttpAnswer& answer, json& usage) {
  json choice = {{"text", ""},
                 {"token_ids", json::array()},
                 {"logprobs", {{"token_logprobs", json::array()}}}};
  const std::vector<std::string> events = answer.Events();
  EXPECT_EQ(events.empty() ? "" : events.back(), "[DONE]");
  for (const std::string& event : events) {
    if (event == "[DONE]") break;
    const json object = json::parse(event);
    if (object["choices"].empty()) {
      usage = object["usage"];
      continue;
    }
    EXPECT_TRUE(object["usage"].is_null());
    const json& one = object["choices"][0];
    choice["text"] = choice["text"].get<std::string>() + one["text"].get<std::string>();
    for (const json& id : one.value("token_ids", json::array())) choice["token_ids"].push_back(id);
    if (one["logprobs"].is_object()) {
      for (const json& value : one["logprobs"]["token_logprobs"]) {
        choice["logprobs"]["token_logprobs"].push_back(value);
      }
    }
    if (!one["finish_reason"].is_null()) choice["finish_reason"] = one["finish_reason"];
  }
  return choice;
}

TEST(HttpEquality, StreamsAndWholeAnswersAreThoseOfGrpc) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  const std::vector<Case> cases = RandomCases(random);
  std::vector<Answer> reference;
  const std::vector<std::vector<std::string>> topologies = {
      {"--single-process", "--prefill=0"},
      {"--prefill=1", "--decode=2", "--local-prefill-tokens=0"}};
  for (const std::vector<std::string>& topology : topologies) {
    std::vector<std::string> flags = topology;
    flags.insert(flags.end(), {"--engine=hash", "--kv-blocks=512"});
    ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start(flags));
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(cases[i].body.dump());
      const Answer grpc = cluster->Generate(cases[i].request);
      ASSERT_OK(grpc.status);
      if (reference.size() < cases.size()) reference.push_back(grpc);
      EXPECT_EQ(grpc.tokens, reference[i].tokens);

      const HttpAnswer whole =
          Ask(cluster->http_address(), PostOf("/v1/completions", cases[i].body.dump()));
      ASSERT_EQ(whole.status, 200) << whole.body;
      ExpectSame(whole.Json()["choices"][0], grpc, whole.Json()["usage"]);

      json streamed = cases[i].body;
      streamed["stream"] = true;
      streamed["stream_options"] = {{"include_usage", true}};
      const HttpAnswer stream =
          Ask(cluster->http_address(), PostOf("/v1/completions", streamed.dump()));
      ASSERT_EQ(stream.status, 200) << stream.body;
      EXPECT_TRUE(stream.complete);
      json usage;
      const json joined = Joined(stream, usage);
      ExpectSame(joined, grpc, usage);
    }
    EXPECT_EQ(cluster->Stop(), "exit code 0");
  }
}

}  // namespace
}  // namespace tandem::testing
