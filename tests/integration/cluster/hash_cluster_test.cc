// Goal: a cluster of real processes on the hash engine gives exactly the streams the oracle
// computes from tokens alone, whatever its topology and transport; its KV really moves; a cluster
// drains cleanly.
#include <gmock/gmock.h>

#include <random>
#include <thread>

#include "common/engine/hash/hash_engine.h"
#include "common/rpc/convert.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

struct Shape {
  std::string name;
  std::vector<std::string> flags;
  bool disaggregated = true;
};
void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

v1::GenerateRequest RandomRequest(std::mt19937_64& random,
                                  const std::vector<int32_t>& shared_prefix) {
  v1::GenerateRequest request;
  const int prompt_tokens = 1 + static_cast<int>(random() % 700);
  if (random() % 2 == 0) {
    request.mutable_tokens()->mutable_ids()->Add(shared_prefix.begin(), shared_prefix.end());
  }
  for (int i = 0; i < prompt_tokens; ++i)
    request.mutable_tokens()->add_ids(static_cast<int>(random() % 256));
  request.mutable_sampling()->set_temperature(random() % 2 == 0 ? 0.0 : 1.0);
  request.mutable_sampling()->set_seed(random());
  request.mutable_stop()->set_max_tokens(1 + static_cast<int>(random() % 60));
  request.set_return_token_ids(true);
  return request;
}

std::vector<int32_t> Oracle(const v1::GenerateRequest& request) {
  std::vector<TokenId> tokens(request.tokens().ids().begin(), request.tokens().ids().end());
  const size_t prompt = tokens.size();
  const request::SamplingParams sampling = rpc::FromWire(request.sampling());
  engine::HashEngineOptions options;
  options.block_tokens = 32;
  for (int i = 0; i < request.stop().max_tokens(); ++i) {
    tokens.push_back(engine::HashEngineNextToken(options, tokens, sampling, 0));
  }
  return {tokens.begin() + static_cast<ptrdiff_t>(prompt), tokens.end()};
}

TEST(ClusterLog, NamesPeersAndHasNoWarningsOfOtherVersionsOfUcx) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256",
                                                         "--local-prefill-tokens=0"}));
  v1::GenerateRequest request;
  request.set_text(std::string(100, 'p'));
  request.mutable_stop()->set_max_tokens(2);
  const Answer answer = cluster->Generate(request);
  ASSERT_OK(answer.status);
  EXPECT_GT(answer.finished.route().kv_bytes_moved(), 0);
  EXPECT_EQ(cluster->Stop(), "exit code 0");
  // The prefill node, which opened the connection, says whose it is.
  EXPECT_THAT(cluster->LinesWith("KV peer connected"),
              ::testing::Contains(::testing::HasSubstr("node=decode-0")));
  // UCX's lines come with its standard output, which a pipe may get as late as at the end.
  EXPECT_THAT(cluster->LinesWith(" UCX "), ::testing::IsEmpty());
}

class HashCluster : public ::testing::TestWithParam<Shape> {};

TEST_P(HashCluster, EqualsTheOracleAndMovesItsKv) {
  std::vector<std::string> flags = GetParam().flags;
  // By predicted times, decode nodes would keep most prompts of an engine that computes in no time.
  flags.insert(flags.end(), {"--engine=hash", "--kv-blocks=2048", "--placement=affinity"});
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start(flags));
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  std::vector<int32_t> shared(200);
  for (int32_t& token : shared) token = static_cast<int32_t>(random() % 256);
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 120; ++i) requests.push_back(RandomRequest(random, shared));

  std::vector<Answer> answers(requests.size());
  std::vector<std::thread> clients;
  for (int t = 0; t < 8; ++t) {
    clients.emplace_back([&, t] {
      for (size_t i = t; i < requests.size(); i += 8) answers[i] = cluster->Generate(requests[i]);
    });
  }
  for (std::thread& client : clients) client.join();

  int64_t moved = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_OK(answers[i].status) << "request " << i;
    EXPECT_EQ(answers[i].tokens, Oracle(requests[i])) << "request " << i;
    moved += answers[i].finished.route().kv_bytes_moved();
  }
  EXPECT_EQ(moved > 0, GetParam().disaggregated);

  ASSERT_OK_AND_ASSIGN(const auto status, cluster->client().GetStatus(absl::Seconds(5)));
  EXPECT_EQ(status.router().diverged_tokens(), 0);
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, HashCluster,
    ::testing::Values(Shape{"Interleaved", {"--prefill=0", "--decode=1"}, false},
                      Shape{"OneProcess", {"--single-process", "--prefill=1", "--decode=1"}},
                      Shape{"SharedMemory", {"--prefill=1", "--decode=1", "--transport=shm"}},
                      Shape{"Tcp", {"--prefill=1", "--decode=1", "--transport=tcp"}},
                      Shape{"EncryptedSharedMemory",
                            {"--prefill=1", "--decode=1", "--transport=shm", "--kv-encryption"}},
                      Shape{"EncryptedTcp",
                            {"--prefill=1", "--decode=1", "--transport=tcp", "--kv-encryption"}},
                      Shape{"TwoByThree", {"--prefill=2", "--decode=3", "--max-batch-tokens=96"}},
                      Shape{"TwoRouters", {"--prefill=1", "--decode=2", "--routers=2"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem::testing
