// Goal: idea 1 of the architecture, on the real model: token ids and log-probabilities of 200
// requests (greedy and sampled, 1 to 3,000 prompt tokens, shared prefixes; several answers, the
// best of them, beams, penalties, biases, guided answers, stop strings, prompts' log-probabilities)
// are the same bits whether one process served them one at a time, or prefill and decode nodes did,
// concurrently, over shared memory or encrypted TCP, with other chunk sizes, block counts and
// thread counts, or with too few blocks, so that nodes lend each other memory.
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "common/config/schema.h"
#include "common/model/model_path.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

constexpr int kRequests = 200;
constexpr int kVocabulary = 49152;

int RandomLength(std::mt19937_64& random) {
  const uint64_t kind = random() % 10;
  if (kind < 6) return 1 + static_cast<int>(random() % 64);
  if (kind < 9) return 65 + static_cast<int>(random() % 340);
  // Long ones: log-uniform up to 3,000.
  return static_cast<int>(400 * std::pow(7.5, static_cast<double>(random() % 1001) / 1000.0));
}

// What else a request may ask for; for half of them, nothing.
void AddFeature(std::mt19937_64& random, v1::GenerateRequest& request) {
  v1::SamplingParams& sampling = *request.mutable_sampling();
  switch (random() % 20) {
    case 0:
      return request.set_n(3);
    case 1:
      request.set_best_of(3);
      return request.set_n(2);
    case 2:
      sampling.set_presence_penalty(0.8);
      return sampling.set_frequency_penalty(-0.4);
    case 3:
      return sampling.set_min_p(0.1);
    case 4:
      for (int i = 0; i < 5; ++i) (*sampling.mutable_logit_bias())[random() % kVocabulary] = 12.0f;
      return;
    case 5:
      for (int i = 0; i < 50; ++i) sampling.add_allowed_token_ids(random() % kVocabulary);
      return;
    case 6:
      for (const char* option : {"yes", "no", "perhaps, it depends"})
        request.mutable_guided()->mutable_choice()->add_options(option);
      return;
    case 7:
      return request.mutable_guided()->set_regex("(a|b)[0-9]{2,4}( end)?");
    case 8:
      sampling = v1::SamplingParams();
      sampling.set_logprobs(3);
      request.mutable_stop()->clear_stop();
      request.mutable_beam_search()->set_width(3);
      return request.set_n(2);
    case 9:
      return request.set_prompt_logprobs(2);
    default:
      return;
  }
}

std::vector<v1::GenerateRequest> RandomRequests(std::mt19937_64& random) {
  std::vector<std::vector<int>> families(4, std::vector<int>(300));
  for (auto& family : families) {
    for (int& token : family) token = static_cast<int>(random() % kVocabulary);
  }
  std::vector<v1::GenerateRequest> requests(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    v1::GenerateRequest& request = requests[i];
    const int length = i == 0 ? 1 : i == 1 ? 3000 : RandomLength(random);
    auto& ids = *request.mutable_tokens()->mutable_ids();
    if (random() % 2 == 0) {
      const auto& family = families[random() % families.size()];
      const int shared = std::min<int>(length - 1, 1 + static_cast<int>(random() % 300));
      for (int k = 0; k < shared; ++k) ids.Add(family[k]);
    }
    while (ids.size() < length) ids.Add(static_cast<int>(random() % kVocabulary));
    v1::SamplingParams& sampling = *request.mutable_sampling();
    sampling.set_seed(random());
    sampling.set_logprobs(3);
    if (random() % 2 == 0) {
      sampling.set_temperature(0);
    } else {
      sampling.set_temperature(0.7);
      sampling.set_top_p(0.95);
      sampling.set_top_k(50);
      if (random() % 3 == 0) sampling.set_repetition_penalty(1.2);
    }
    request.mutable_stop()->set_max_tokens(1 + static_cast<int>(random() % 12));
    if (random() % 8 == 0) request.mutable_stop()->add_stop("e");
    AddFeature(random, request);
  }
  return requests;
}

// Every answer's text, tokens and the bits of all log-probabilities.
struct Bits {
  absl::Status status;
  std::string stream;
  v1::Finished finished;  // the last one
};

void AddLogprob(int32_t id, float logprob, std::string& to) {
  uint32_t raw = 0;
  std::memcpy(&raw, &logprob, sizeof(raw));
  absl::StrAppend(&to, id, ":", raw, " ");
}

void AddDelta(const v1::Delta& delta, std::string& to) {
  for (const v1::GeneratedToken& token : delta.tokens()) {
    AddLogprob(token.token_id(), token.logprob(), to);
    for (const auto& top : token.top_logprobs()) AddLogprob(top.token_id(), top.logprob(), to);
    to += "| ";
  }
}

Bits Serve(cli::Client& client, const v1::GenerateRequest& request) {
  struct Answer {
    std::string tokens, text, reason;
  };
  std::map<int32_t, Answer> answers;
  Bits bits;
  bits.status = client.Generate(request, [&](const v1::GenerateResponse& part) {
    if (part.has_finished()) {
      bits.finished = part.finished();
      answers[part.finished().sequence_index()].reason =
          absl::StrCat(part.finished().reason(), " ", part.finished().stop_string());
    }
    for (const auto& scored : part.prompt_logprobs().tokens()) {
      AddLogprob(scored.token_id(), scored.logprob(), bits.stream);
      for (const auto& top : scored.top_logprobs())
        AddLogprob(top.token_id(), top.logprob(), bits.stream);
    }
    Answer& answer = answers[part.delta().sequence_index()];
    AddDelta(part.delta(), answer.tokens);
    answer.text += part.delta().text();
    return true;
  });
  for (const auto& [index, answer] : answers) {
    absl::StrAppend(&bits.stream, "\nanswer ", index, ": ", answer.tokens, answer.text, " reason ",
                    answer.reason);
  }
  return bits;
}

std::vector<Bits> ServeAll(cli::Client& client, const std::vector<v1::GenerateRequest>& requests,
                           size_t concurrency) {
  std::vector<Bits> all(requests.size());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < concurrency; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < requests.size(); i += concurrency) all[i] = Serve(client, requests[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

// Computed, received and cached tokens add up to the prompt tokens of every node, and decode nodes
// received some.
void ExpectKvMoved(cli::Client& client) {
  ASSERT_OK_AND_ASSIGN(const auto status, client.GetStatus(absl::Seconds(5)));
  for (const v1::NodeStatus& node : status.nodes()) {
    const v1::TokensBySource& tokens = node.counters().prompt_tokens();
    EXPECT_EQ(tokens.computed() + tokens.received() + tokens.cached(),
              node.counters().prompt_tokens_total())
        << node.node_id();
  }
  EXPECT_EQ(status.router().diverged_tokens(), 0);
}

int64_t UnitsLent(cli::Client& client) {
  const auto status = client.GetStatus(absl::Seconds(5));
  int64_t units = 0;
  if (status.ok())
    for (const v1::NodeStatus& node : status->nodes()) units += node.counters().units_lent();
  return units;
}

struct Topology {
  std::string name;
  std::vector<std::string> flags;
  size_t concurrency;
  bool disaggregated;
};

TEST(Equality, EveryTopologyGivesTheBitsOfOneProcess) {
  if (const auto path = model::ResolveModelPath("smollm2", config::Environment()); !path.ok()) {
    GTEST_SKIP() << path.status();
  }
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  const std::vector<v1::GenerateRequest> requests = RandomRequests(random);
  const std::vector<Topology> topologies = {
      {"one process, one at a time",
       {"--single-process", "--prefill=0", "--kv-blocks=400"},
       1,
       false},
      {"1P+1D over shared memory",
       {"--prefill=1", "--decode=1", "--transport=shm", "--kv-blocks=600", "--max-batch-tokens=200",
        "--local-prefill-tokens=0"},
       6,
       true},
      {"2P+3D over TCP, encrypted",
       {"--prefill=2", "--decode=3", "--transport=tcp", "--kv-encryption", "--kv-blocks=500",
        "--max-batch-tokens=97", "--threads=2"},
       8,
       true},
      {"1P+1D in one process",
       {"--single-process", "--prefill=1", "--kv-blocks=250", "--max-batch-tokens=333"},
       4,
       true},
      {"1P+3D that lend each other memory",
       {"--prefill=1", "--decode=3", "--kv-blocks=100", "--max-batch-tokens=200",
        "--lend-fraction=0.8", "--local-prefill-tokens=0"},
       12,
       true},
  };
  std::vector<Bits> reference;
  for (const Topology& topology : topologies) {
    SCOPED_TRACE(topology.name);
    std::vector<std::string> flags = topology.flags;
    flags.push_back("--model=smollm2");
    ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start(flags));
    const std::vector<Bits> answers = ServeAll(cluster->client(), requests, topology.concurrency);
    int64_t received = 0;
    for (int i = 0; i < kRequests; ++i) {
      ASSERT_OK(answers[i].status)
          << "request " << i << ", " << requests[i].tokens().ids_size() << " tokens";
      if (!reference.empty()) {
        EXPECT_EQ(answers[i].stream, reference[i].stream)
            << "request " << i << ", " << requests[i].tokens().ids_size() << " tokens";
      }
      received += answers[i].finished.route().decode_tokens().received();
    }
    EXPECT_EQ(received > 0, topology.disaggregated);
    std::printf("%s: %ld prompt tokens received, %ld units lent\n", topology.name.c_str(),
                static_cast<long>(received), static_cast<long>(UnitsLent(cluster->client())));
    ExpectKvMoved(cluster->client());
    EXPECT_EQ(cluster->Stop(), "exit code 0");
    if (reference.empty()) reference = answers;
  }
}

}  // namespace
}  // namespace tandem::testing
