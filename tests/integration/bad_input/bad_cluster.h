// The fixture of bad-input tests: a hash-engine cluster that must be well after every one of them.
// Thread safety: by the test's thread.
#pragma once

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {

// A prompt of `tokens` ids and an answer of `max_tokens`.
inline v1::GenerateRequest TokensRequest(int tokens, int max_tokens) {
  v1::GenerateRequest request;
  for (int i = 0; i < tokens; ++i) request.mutable_tokens()->add_ids((i * 7 + tokens) % 256);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_return_token_ids(true);
  return request;
}

// An ordinary request is answered over both legs, and nothing of it or of earlier ones is held.
inline void ExpectWell(cli::Client& client) {
  static int serial = 0;
  v1::GenerateRequest request = TokensRequest(100, 5);
  request.mutable_tokens()->set_ids(0, serial++ % 256);  // no prefix of an earlier one
  const Answer answer = Collect(client, request);
  ASSERT_OK(answer.status);
  EXPECT_EQ(answer.tokens.size(), 5);
  ASSERT_OK(AwaitQuiet(client, absl::Seconds(20)));
}

class BadCluster : public ::testing::Test {
 protected:
  // 64 blocks of 32 tokens a node: far below the context of 32,768 tokens.
  virtual std::vector<std::string> Flags() const {
    return {"--engine=hash", "--prefill=1", "--decode=1", "--kv-blocks=64"};
  }
  void SetUp() override { ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start(Flags())); }
  void TearDown() override {
    if (cluster_ == nullptr) return;
    ExpectWell(client());
    EXPECT_EQ(cluster_->Stop(), "exit code 0");
  }
  cli::Client& client() { return cluster_->client(); }

  std::unique_ptr<TestCluster> cluster_;
};

}  // namespace tandem::testing
