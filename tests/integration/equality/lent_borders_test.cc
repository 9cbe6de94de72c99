// Goal: lending at every border of partitions changes no bit. 200 requests on the real model,
// greedy and sampled, whose lengths lie around multiples of 256 tokens, are answered by decode
// nodes whose pools hold one partition and 32 tokens: each full partition has to be lent before its
// sequence can grow by 33 tokens more. Tokens, log-probabilities and texts are the bits of a node
// that holds everything and lends nothing. Each answer's route, and the nodes' metrics, say that
// as many partitions were lent as had to be.
#include <algorithm>
#include <cstdio>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tests/testing/http_client.h"
#include "tests/testing/models.h"
#include "tests/testing/process_fleet.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

constexpr int kRequests = 200, kVocabulary = 49152;
constexpr int kBlockTokens = 32, kPartitionTokens = 256;
constexpr int kPoolBlocks = kPartitionTokens / kBlockTokens + 1;
constexpr int kPoolTokens = kPoolBlocks * kBlockTokens;
constexpr int kFamilies = 5, kBordersMax = 3;
// A prompt ends so many tokens before a border, or so many after it, at most.
constexpr int kBefore = 10, kAfter = 40;
constexpr int kAnswerMax = 16;

// Most cross one border, one in twenty three of them. Prompts of a family begin alike.
std::vector<v1::GenerateRequest> RandomRequests(std::mt19937_64& random) {
  std::vector<std::vector<int>> families(kFamilies);
  for (auto& family : families)
    for (int i = 0; i < kBordersMax * kPartitionTokens; ++i)
      family.push_back(static_cast<int>(random() % kVocabulary));
  std::vector<v1::GenerateRequest> requests(kRequests);
  for (v1::GenerateRequest& request : requests) {
    const uint64_t kind = random() % 20;
    const int borders = kind < 16 ? 1 : kind < 19 ? 2 : kBordersMax;
    const int length =
        borders * kPartitionTokens - kBefore + static_cast<int>(random() % (kBefore + kAfter + 1));
    const auto& family = families[random() % kFamilies];
    const int shared = std::min<int>(static_cast<int>(family.size()),
                                     length - 1 - static_cast<int>(random() % 20));
    request.mutable_tokens()->mutable_ids()->Add(family.begin(), family.begin() + shared);
    while (request.tokens().ids_size() < length)
      request.mutable_tokens()->add_ids(static_cast<int>(random() % kVocabulary));
    request.mutable_stop()->set_max_tokens(1 + static_cast<int>(random() % kAnswerMax));
    request.mutable_stop()->set_ignore_eos(true);
    request.set_return_token_ids(true);
    v1::SamplingParams& sampling = *request.mutable_sampling();
    sampling.set_seed(random() >> 1);
    sampling.set_logprobs(2);
    sampling.set_temperature(random() % 2 == 0 ? 0 : 0.8);
    if (random() % 4 == 0) sampling.set_repetition_penalty(1.2);
  }
  return requests;
}

std::vector<Answer> ServeAll(cli::Client& client, const std::vector<v1::GenerateRequest>& requests,
                             size_t clients) {
  std::vector<Answer> all(requests.size());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < clients; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = t; i < requests.size(); i += clients) all[i] = Collect(client, requests[i]);
    });
  for (std::thread& thread : threads) thread.join();
  return all;
}

// The partitions that do not fit into a pool beside the rest of the sequence. The last token has
// no KV.
int64_t PartitionsToLend(const v1::GenerateRequest& request) {
  const int64_t rows = request.tokens().ids_size() + request.stop().max_tokens() - 1;
  return std::max<int64_t>(0, (rows - kPoolTokens + kPartitionTokens - 1) / kPartitionTokens);
}

// The sum over all nodes of the router's metric `name`.
int64_t Metric(const std::string& router, const std::string& name) {
  HttpSocket socket(router);
  socket.Send(GetOf("/metrics"));
  const std::string page = socket.Read().body;
  int64_t sum = 0;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    double value = 0;
    if (!absl::StartsWith(line, name + "{")) continue;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) << line;
    sum += static_cast<int64_t>(value);
  }
  return sum;
}

// Decode nodes of one partition, and prefill nodes that compute nothing and lend: affinity leaves
// prompts of up to --local-prefill-tokens to decode nodes, whatever that costs.
std::unique_ptr<ProcessFleet> StartLenders(const std::string& model) {
  const std::string model_flag = "--model=" + model;
  auto fleet = ProcessFleet::Start({model_flag, "--placement=affinity",
                                    "--local-prefill-tokens=100000", "--heartbeat-interval=100ms"});
  EXPECT_OK(fleet.status());
  if (!fleet.ok()) return nullptr;
  const auto start = [&](const char* kind, const char* id, int blocks, const char* lent) {
    EXPECT_OK((*fleet)->StartNode(kind, id,
                                  {model_flag, absl::StrCat("--block-tokens=", kBlockTokens),
                                   absl::StrCat("--kv-blocks=", blocks), "--threads=1",
                                   absl::StrCat("--lend-fraction=", lent)}));
  };
  for (const char* id : {"prefill-0", "prefill-1"}) start("prefill", id, 256, "0.9");
  for (const char* id : {"decode-0", "decode-1"}) start("decode", id, kPoolBlocks, "0.9");
  const absl::Status joined = (*fleet)->AwaitJoined();
  EXPECT_OK(joined);
  return joined.ok() ? *std::move(fleet) : nullptr;
}

TEST(LentBorders, EveryFullPartitionIsLentAndNoBitChanges) {
  TANDEM_FIND_MODEL_OR_SKIP(path, kSmolLm2File);
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const std::vector<v1::GenerateRequest> requests = RandomRequests(random);

  auto whole =
      TestCluster::Start({"--model=" + path, "--prefill=0", "--decode=1",
                          absl::StrCat("--block-tokens=", kBlockTokens), "--kv-blocks=1000"});
  ASSERT_OK(whole.status());
  absl::Time began = absl::Now();
  const std::vector<Answer> expected = ServeAll((*whole)->client(), requests, 4);
  std::printf("unlent: %.1f s\n", absl::ToDoubleSeconds(absl::Now() - began));
  EXPECT_EQ((*whole)->Stop(), "exit code 0");

  const auto lenders = StartLenders(path);
  ASSERT_NE(lenders, nullptr);
  began = absl::Now();
  const std::vector<Answer> answers = ServeAll(lenders->client(), requests, 2);
  std::printf("lent: %.1f s\n", absl::ToDoubleSeconds(absl::Now() - began));
  int64_t lent_at_least = 0;
  for (int i = 0; i < kRequests; ++i) {
    SCOPED_TRACE(absl::StrCat("request ", i, ": ", requests[i].tokens().ids_size(),
                              " prompt tokens, ", requests[i].stop().max_tokens(), " at most"));
    ASSERT_OK(expected[i].status);
    ASSERT_OK(answers[i].status);
    EXPECT_EQ(answers[i].tokens, expected[i].tokens);
    EXPECT_EQ(answers[i].logprobs, expected[i].logprobs);
    EXPECT_EQ(answers[i].text, expected[i].text);
    EXPECT_EQ(expected[i].finished.route().lent().tokens_max(), 0);
    const int64_t partitions = PartitionsToLend(requests[i]);
    EXPECT_GE(answers[i].finished.route().lent().tokens_max(), partitions * kPartitionTokens);
    lent_at_least += partitions;
  }
  EXPECT_GT(lent_at_least, kRequests / 4);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  const char* const kLent = "tandem_node_partitions_lent_total";
  int64_t lent = 0;
  while ((lent = Metric(lenders->http_address(), kLent)) < lent_at_least && absl::Now() < deadline)
    continue;
  std::printf("%s: %ld, at least %ld had to be\n", kLent, static_cast<long>(lent),
              static_cast<long>(lent_at_least));
  EXPECT_GE(lent, lent_at_least);
  EXPECT_GT(Metric(lenders->http_address(), "tandem_node_lending_answers_total"), 0);
  EXPECT_EQ(Metric(lenders->http_address(), "tandem_node_loans_lost_total"), 0);
}

}  // namespace
}  // namespace tandem::testing
