// Goal: after ten thousand requests through real processes, a fifth of them cancelled at random
// tokens, nothing is left over: every lease and block is back, no process has more file descriptors
// or threads than after a warm-up, resident memory is flat, and no stream was wrong.
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "common/engine/hash/hash_engine.h"
#include "common/rpc/convert.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

constexpr int kWarmUpRequests = 2'000;
constexpr int kRequests = 10'000;
constexpr int kClientThreads = 16;
constexpr int kBlockTokens = 32;
// gRPC's executor and UCX start a helper when they are busier than ever before, and keep it.
constexpr int kThreadsBound = 2;
// A connection that is just being made or given up is counted by one of two looks.
constexpr int kFdsBound = 2;
// Measured: 0.1 to 0.9 MB a process over the 8,000 requests after the warm-up, as malloc's arenas
// fill. A leak of half a kilobyte a request is beyond it.
constexpr int64_t kResidentGrowthKb = 3'000;

// ---- what a process holds, from /proc

struct Footprint {
  std::string name;
  int64_t fds = 0, threads = 0;
  // Of the process alone. Pages of KV memory, which other processes map too, become resident when
  // their blocks are used first: that is no growth.
  int64_t resident_kb = 0;
};

std::string StatusField(pid_t pid, const std::string& field) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(in, line);)
    if (absl::StartsWith(line, field + ":")) return line.substr(field.size() + 1);
  return "";
}

Footprint FootprintOf(pid_t pid) {
  Footprint footprint;
  std::istringstream(StatusField(pid, "Name")) >> footprint.name;
  std::istringstream(StatusField(pid, "Threads")) >> footprint.threads;
  std::istringstream(StatusField(pid, "RssAnon")) >> footprint.resident_kb;
  std::error_code error;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error))
    ++footprint.fds;
  return footprint;
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    pid_t of = 0;
    const pid_t pid = std::stoi(name);
    std::istringstream(StatusField(pid, "PPid")) >> of;
    if (of == parent) children.push_back(pid);
  }
  return children;
}

// ---- the load

struct Totals {
  std::atomic<int64_t> finished{0}, cancelled{0}, tokens{0}, checked{0}, wrong{0}, failed{0};
};

class Load {
 public:
  Load(const std::string& address, uint64_t seed) : seed_(seed) {
    for (int i = 0; i < 4; ++i) clients_.push_back(cli::Client::Create(address));
    std::mt19937_64 random(seed);
    for (std::vector<int32_t>& prefix : prefixes_) prefix = Tokens(random, 40 + random() % 160);
  }

  // Requests [first, last) from all threads.
  void Run(int first, int last) {
    std::atomic<int> next{first};
    std::vector<std::thread> threads;
    for (int t = 0; t < kClientThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = next++; i < last; i = next++) One(i, *clients_[t % clients_.size()]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  cli::Client& client() { return *clients_[0]; }
  const Totals& totals() const { return totals_; }

 private:
  static std::vector<int32_t> Tokens(std::mt19937_64& random, size_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 256);
    return tokens;
  }

  // A prompt of 1 to 400 tokens, half of them behind one of eight shared prefixes.
  v1::GenerateRequest Request(std::mt19937_64& random) const {
    v1::GenerateRequest request;
    std::vector<int32_t> prompt;
    if (random() % 2 == 0) prompt = prefixes_[random() % prefixes_.size()];
    const std::vector<int32_t> own = Tokens(random, 1 + random() % (400 - prompt.size()));
    prompt.insert(prompt.end(), own.begin(), own.end());
    request.mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
    request.mutable_sampling()->set_temperature(random() % 2 == 0 ? 0.0 : 1.0);
    request.mutable_sampling()->set_seed(random());
    request.mutable_stop()->set_max_tokens(1 + static_cast<int>(random() % 40));
    request.set_return_token_ids(true);
    return request;
  }

  void One(int index, cli::Client& client) {
    std::mt19937_64 random(seed_ + 1 + static_cast<uint64_t>(index));
    const v1::GenerateRequest request = Request(random);
    const int max_tokens = request.stop().max_tokens();
    const bool cancels = random() % 5 == 0;
    const int cancel_after = static_cast<int>(random() % max_tokens);  // 0: before any token
    const bool checks = random() % 10 == 0;
    std::vector<int32_t> got;
    bool finished = false;
    const absl::Status status = client.Generate(request, [&](const v1::GenerateResponse& part) {
      for (const v1::GeneratedToken& token : part.delta().tokens()) got.push_back(token.token_id());
      finished = finished || part.has_finished();
      return !cancels || static_cast<int>(got.size()) < cancel_after ||
             (cancel_after == 0 && !part.has_started());
    });
    if (!status.ok() || (!cancels && (!finished || static_cast<int>(got.size()) != max_tokens))) {
      if (totals_.failed++ < 5)
        ADD_FAILURE() << "request " << index << ": " << status << ", " << got.size()
                      << " tokens of " << max_tokens;
      return;
    }
    ++(cancels ? totals_.cancelled : totals_.finished);
    totals_.tokens += static_cast<int64_t>(got.size());
    if (checks) Check(index, request, got);
  }

  // Every token that came is the oracle's.
  void Check(int index, const v1::GenerateRequest& request, const std::vector<int32_t>& got) {
    engine::HashEngineOptions options;
    options.block_tokens = kBlockTokens;
    const request::SamplingParams sampling = rpc::FromWire(request.sampling());
    std::vector<TokenId> tokens(request.tokens().ids().begin(), request.tokens().ids().end());
    ++totals_.checked;
    for (size_t i = 0; i < got.size(); ++i) {
      const TokenId expected = engine::HashEngineNextToken(options, tokens, sampling, 0);
      if (got[i] != expected) {
        if (totals_.wrong++ < 5)
          ADD_FAILURE() << "request " << index << ", token " << i << ": " << got[i] << ", expected "
                        << expected;
        return;
      }
      tokens.push_back(expected);
    }
  }

  const uint64_t seed_;
  std::vector<std::unique_ptr<cli::Client>> clients_;
  std::array<std::vector<int32_t>, 8> prefixes_;
  Totals totals_;
};

struct Shape {
  std::string name;
  std::vector<std::string> flags;
};
void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

class Soak : public ::testing::TestWithParam<Shape> {};

TEST_P(Soak, TenThousandRequestsLeaveNothingBehind) {
  std::vector<std::string> flags = GetParam().flags;
  flags.insert(flags.end(), {"--engine=hash", "--prefill=2", "--decode=2"});
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start(flags));
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  Load load(cluster->address(), seed);
  std::vector<pid_t> pids = ChildrenOf(cluster->pid());
  ASSERT_EQ(pids.size(), 5) << "one router, two prefill and two decode nodes";
  pids.push_back(cluster->pid());

  const absl::Time begin = absl::Now();
  load.Run(0, kWarmUpRequests);
  ASSERT_OK(AwaitQuiet(load.client(), absl::Seconds(30)));
  std::vector<Footprint> before;
  for (const pid_t pid : pids) before.push_back(FootprintOf(pid));

  load.Run(kWarmUpRequests, kRequests);
  ASSERT_OK_AND_ASSIGN(const auto status, AwaitQuiet(load.client(), absl::Seconds(30)));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);

  const Totals& totals = load.totals();
  std::printf("%ld finished, %ld cancelled, %ld tokens, %ld streams checked in %.1f s\n",
              totals.finished.load(), totals.cancelled.load(), totals.tokens.load(),
              totals.checked.load(), seconds);
  EXPECT_EQ(totals.finished + totals.cancelled, kRequests);
  EXPECT_GT(totals.cancelled, kRequests / 8);
  EXPECT_GT(totals.checked, kRequests / 20);
  EXPECT_EQ(status.router().diverged_tokens(), 0);
  EXPECT_EQ(status.router().requests_failed(), 0);

  for (size_t i = 0; i < pids.size(); ++i) {
    const Footprint after = FootprintOf(pids[i]);
    std::printf("%-18s fds %3ld -> %3ld  threads %2ld -> %2ld  resident %7ld -> %7ld kB\n",
                after.name.c_str(), before[i].fds, after.fds, before[i].threads, after.threads,
                before[i].resident_kb, after.resident_kb);
    ASSERT_GT(after.fds, 0) << "process " << pids[i] << " is gone";
    EXPECT_LE(after.fds, before[i].fds + kFdsBound) << after.name;
    EXPECT_LE(after.threads, before[i].threads + kThreadsBound) << after.name;
    EXPECT_LE(after.resident_kb, before[i].resident_kb + kResidentGrowthKb) << after.name;
  }
  // A call that never ended would hold this up.
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

// Roomy: shared memory, through which all prompts' KV moves, and blocks for all that run at once.
// Starved: TCP, and blocks for three of them, so that requests wait, are refused and evict each
// other's cached prefixes.
INSTANTIATE_TEST_SUITE_P(
    Shapes, Soak,
    ::testing::Values(Shape{"Roomy", {"--kv-blocks=512", "--local-prefill-tokens=0"}},
                      Shape{"Starved",
                            {"--kv-blocks=40", "--transport=tcp", "--max-batch-tokens=64"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem::testing
