// Clients of a hash-engine cluster. They send one request after another while a test disturbs the
// cluster, and compare every answer with the one that the prompt alone determines.
// Thread safety: none; the test's thread uses it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/engine/hash/hash_engine.h"
#include "common/rpc/convert.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {

inline v1::GenerateRequest RandomRequest(std::mt19937_64& random, const std::string& id) {
  v1::GenerateRequest request;
  request.set_request_id(id);
  const int prompt_tokens = 1 + static_cast<int>(random() % 400);
  for (int i = 0; i < prompt_tokens; ++i)
    request.mutable_tokens()->add_ids(static_cast<int>(random() % 256));
  request.mutable_sampling()->set_temperature(random() % 2 == 0 ? 0.0 : 1.0);
  request.mutable_sampling()->set_seed(random());
  request.mutable_stop()->set_max_tokens(20 + static_cast<int>(random() % 100));
  request.set_return_token_ids(true);
  return request;
}

// The tokens of the answer's sequence `sequence_index`.
inline std::vector<int32_t> Oracle(const v1::GenerateRequest& request, int sequence_index = 0) {
  std::vector<TokenId> tokens(request.tokens().ids().begin(), request.tokens().ids().end());
  const size_t prompt = tokens.size();
  const request::SamplingParams sampling = rpc::FromWire(request.sampling());
  for (int i = 0; i < request.stop().max_tokens(); ++i)
    tokens.push_back(engine::HashEngineNextToken({}, tokens, sampling, sequence_index));
  return {tokens.begin() + static_cast<ptrdiff_t>(prompt), tokens.end()};
}

class OracleLoad {
 public:
  ~OracleLoad() { Stop(); }

  // `count` threads; each asks `clients` in order until one answers.
  void Start(std::vector<cli::Client*> clients, int count) {
    clients_ = std::move(clients);
    seed_ = std::random_device()();
    std::printf("seed %lu\n", static_cast<unsigned long>(seed_));
    for (int i = 0; i < count; ++i) threads_.emplace_back([this, i] { RunClient(i); });
  }
  // Waits until `count` more answers came: the load continues after a disturbance.
  void AwaitAnswers(int64_t count) {
    absl::MutexLock lock(&mutex_);
    const int64_t goal = answered_ + count;
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return answered_ >= goal; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(90)))
        << answered_ << " answers of " << goal;
  }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Requests that were sent to another router, because the first was gone.
  int64_t asked_again() const { return asked_again_; }

 private:
  void RunClient(int index) {
    std::mt19937_64 random(seed_ + index);
    for (int serial = 0; !stop_; ++serial) {
      const auto request = RandomRequest(random, absl::StrCat("c", index, "-", serial));
      size_t router = 0;
      Answer answer = Collect(*clients_[router], request);
      // A client repeats a request only when its router is gone: at another router, with the same
      // id.
      while (!answer.status.ok() && router + 1 < clients_.size()) {
        ++asked_again_;
        answer = Collect(*clients_[++router], request);
      }
      EXPECT_OK(answer.status) << request.request_id();
      EXPECT_EQ(answer.tokens, Oracle(request)) << request.request_id();
      absl::MutexLock lock(&mutex_);
      ++answered_;
    }
  }

  std::vector<cli::Client*> clients_;
  uint64_t seed_ = 0;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> asked_again_{0};
  absl::Mutex mutex_;
  int64_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::testing
