// Goal: lending at every border of partitions changes no bit. 200 requests on the real model,
// greedy and sampled, whose lengths lie around multiples of 256 tokens, are answered by decode
// nodes whose pools hold one partition and 32 tokens: each full partition has to be lent before its
// sequence can grow by 33 tokens more. Tokens, log-probabilities and texts are the bits of a node
// that holds everything and lends nothing. Each answer's route, and the nodes' metrics, say that
// as many partitions were lent as had to be. The same for the portable classes, whose debtors and
// creditors compute the same bits with other instructions, and for a sequence whose partitions make
// more than one group (16 partitions).
#include <algorithm>
#include <cstdio>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/api/backend.h"
#include "tests/testing/http_client.h"
#include "tests/testing/models.h"
#include "tests/testing/printed_seed.h"
#include "tests/testing/process_fleet.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

constexpr int kVocabulary = 49152;
constexpr int kBlockTokens = 32, kPartitionTokens = 256;
constexpr int kPoolBlocks = kPartitionTokens / kBlockTokens + 1;
constexpr int kPoolTokens = kPoolBlocks * kBlockTokens;
constexpr int kFamilies = 5, kBordersMax = 3;
// A prompt ends so many tokens before a border, or so many after it, at most.
constexpr int kBefore = 10, kAfter = 40;
constexpr int kAnswerMax = 16;

// Most cross one border, one in twenty three of them. Prompts of a family begin alike.
std::vector<v1::GenerateRequest> RandomRequests(std::mt19937_64& random, size_t count) {
  std::vector<std::vector<int>> families(kFamilies);
  for (auto& family : families)
    for (int i = 0; i < kBordersMax * kPartitionTokens; ++i)
      family.push_back(static_cast<int>(random() % kVocabulary));
  std::vector<v1::GenerateRequest> requests(count);
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

// The instruction-set classes of the nodes.
struct Classes {
  std::string whole = "auto", debtors = "auto", creditors = "auto";
};

// Decode nodes of one partition, and prefill nodes that compute nothing and lend: affinity leaves
// prompts of up to --local-prefill-tokens to decode nodes, whatever that costs.
std::unique_ptr<ProcessFleet> StartLenders(const std::string& model, const Classes& classes) {
  const std::string model_flag = "--model=" + model;
  auto fleet = ProcessFleet::Start({model_flag, "--placement=affinity",
                                    "--local-prefill-tokens=100000", "--heartbeat-interval=100ms"});
  EXPECT_OK(fleet.status());
  if (!fleet.ok()) return nullptr;
  const auto start = [&](const char* kind, const char* id, int blocks, const std::string& isa) {
    EXPECT_OK((*fleet)->StartNode(kind, id,
                                  {model_flag, absl::StrCat("--block-tokens=", kBlockTokens),
                                   absl::StrCat("--kv-blocks=", blocks), "--threads=1",
                                   "--lend-fraction=0.9", "--isa=" + isa}));
  };
  for (const char* id : {"prefill-0", "prefill-1"}) start("prefill", id, 256, classes.creditors);
  for (const char* id : {"decode-0", "decode-1"}) start("decode", id, kPoolBlocks, classes.debtors);
  const absl::Status joined = (*fleet)->AwaitJoined();
  EXPECT_OK(joined);
  return joined.ok() ? *std::move(fleet) : nullptr;
}

// The answers of a node that lends nothing.
std::vector<Answer> Unlent(const std::string& model, const Classes& classes,
                           const std::vector<v1::GenerateRequest>& requests) {
  const auto whole =
      TestCluster::Start({"--model=" + model, "--prefill=0", "--decode=1", "--isa=" + classes.whole,
                          absl::StrCat("--block-tokens=", kBlockTokens), "--kv-blocks=1000"});
  EXPECT_OK(whole.status());
  if (!whole.ok()) return {};
  const absl::Time began = absl::Now();
  std::vector<Answer> answers = ServeAll((*whole)->client(), requests, 4);
  std::printf("unlent: %.1f s\n", absl::ToDoubleSeconds(absl::Now() - began));
  EXPECT_EQ((*whole)->Stop(), "exit code 0");
  return answers;
}

// Returns how many partitions had to be lent.
int64_t ExpectLentAndEqual(const std::vector<v1::GenerateRequest>& requests,
                           const std::vector<Answer>& answers,
                           const std::vector<Answer>& expected) {
  int64_t lent_at_least = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("request ", i, ": ", requests[i].tokens().ids_size(),
                              " prompt tokens, ", requests[i].stop().max_tokens(), " at most"));
    EXPECT_OK(expected[i].status);
    EXPECT_OK(answers[i].status);
    EXPECT_EQ(answers[i].tokens, expected[i].tokens);
    EXPECT_EQ(answers[i].logprobs, expected[i].logprobs);
    EXPECT_EQ(answers[i].text, expected[i].text);
    EXPECT_EQ(expected[i].finished.route().lent().tokens_max(), 0);
    const int64_t partitions = PartitionsToLend(requests[i]);
    EXPECT_GE(answers[i].finished.route().lent().tokens_max(), partitions * kPartitionTokens);
    lent_at_least += partitions;
  }
  return lent_at_least;
}

void ExpectNoBitChanges(const std::string& model, const Classes& classes,
                        const std::vector<v1::GenerateRequest>& requests) {
  const std::vector<Answer> expected = Unlent(model, classes, requests);
  ASSERT_EQ(expected.size(), requests.size());
  const auto lenders = StartLenders(model, classes);
  ASSERT_NE(lenders, nullptr);
  const absl::Time began = absl::Now();
  const std::vector<Answer> answers = ServeAll(lenders->client(), requests, 2);
  std::printf("lent: %.1f s\n", absl::ToDoubleSeconds(absl::Now() - began));
  const int64_t lent_at_least = ExpectLentAndEqual(requests, answers, expected);
  EXPECT_GT(lent_at_least, static_cast<int64_t>(requests.size()) / 4);
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

TEST(LentBorders, EveryFullPartitionIsLentAndNoBitChanges) {
  TANDEM_FIND_MODEL_OR_SKIP(path, kSmolLm2File);
  std::mt19937_64 random(PrintedSeed());
  ExpectNoBitChanges(path, {}, RandomRequests(random, 200));
}

TEST(LentBorders, PortableClassesLendToEachOther) {
  TANDEM_FIND_MODEL_OR_SKIP(path, kSmolLm2File);
  for (const char* isa : {"avx2", "avx512"}) {
    kernels::IsaClass parsed = kernels::IsaClass::kRef;
    ASSERT_TRUE(kernels::ParseIsaClass(isa, &parsed));
    if (kernels::FindBackend(parsed) == nullptr) GTEST_SKIP() << "this processor lacks " << isa;
  }
  std::mt19937_64 random(PrintedSeed());
  const std::vector<v1::GenerateRequest> requests = RandomRequests(random, 24);
  ExpectNoBitChanges(path, {.whole = "avx2", .debtors = "avx512", .creditors = "avx2"}, requests);
  ExpectNoBitChanges(path, {.whole = "avx512", .debtors = "avx2", .creditors = "avx512"}, requests);
}

// Of 18 partitions, at most one of which is not lent.
TEST(LentBorders, ASequenceOfMoreThanOneGroupOfPartitions) {
  TANDEM_FIND_MODEL_OR_SKIP(path, kSmolLm2File);
  std::mt19937_64 random(PrintedSeed());
  std::vector<v1::GenerateRequest> requests = RandomRequests(random, 2);
  for (v1::GenerateRequest& request : requests) {
    while (request.tokens().ids_size() < 17 * kPartitionTokens)
      request.mutable_tokens()->add_ids(static_cast<int>(random() % kVocabulary));
    request.mutable_stop()->set_max_tokens(60);
  }
  requests[0].mutable_sampling()->set_temperature(0.8);
  requests[1].mutable_sampling()->set_temperature(0);
  ExpectNoBitChanges(path, {}, requests);
}

}  // namespace
}  // namespace tandem::testing
