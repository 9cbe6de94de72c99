// Goal: a prompt's beginning that another node has in its storage is fetched from there only where
// reading it, each tier's blocks at that tier's rate, takes less time than computing it.
#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

constexpr int kPrompt = 100;
constexpr double kRowUs = 1000;  // of a prompt
constexpr int64_t kBytesOfToken = 1000;
constexpr double kSlow = kBytesOfToken * 1e6 / kRowUs / 2;  // a token takes twice its computation

class DiskHolderTest : public ::testing::Test {
 protected:
  DiskHolderTest() : h_(Options()) {
    SetLogLevel(LogLevel::kError);
    Join(kD0, "d0", v1::NODE_ROLE_DECODE);
    Join(kP0, "p0", v1::NODE_ROLE_PREFILL);
  }
  static RouterOptions Options() {
    RouterOptions options;
    options.local_prefill_tokens_max = 0;
    options.fetch_tokens_min = 48;
    return options;
  }
  void Join(uint64_t key, const std::string& id, v1::NodeRole role) {
    v1::Registration registration = TestRegistration(id, role);
    registration.set_kv_bytes_per_block(kBytesOfToken * kBlockTokens);
    ASSERT_OK(h_.Join(key, registration));
    v1::NodeMessage message;
    message.mutable_step_cost()->set_step_us(500);
    message.mutable_step_cost()->set_prompt_row_us(kRowUs);
    message.mutable_step_cost()->set_samples(100);
    h_.SayMessage(key, message);
  }
  // d0 says that its storage has the prompt's blocks in this tier, and how fast the disk reads.
  void Store(Tier tier, double bytes_per_second) {
    const std::vector<kv::BlockHash> hashes = HashesOf(Tokens(kPrompt));
    v1::NodeMessage message;
    v1::BlocksStored& stored = *message.add_events()->mutable_blocks_stored();
    stored.set_hashes(kv::PackHashes(hashes));
    stored.set_on_disk(true);
    stored.set_in_host_memory(tier == Tier::kHost);
    *message.mutable_load() = h_.core().fleet().Find(NodeKey(kD0))->load;
    message.mutable_load()->set_blocks_stored(static_cast<int64_t>(hashes.size()));
    v1::CopyCost& read = *message.mutable_storage_cost()->mutable_read();
    read.set_fixed_us(500);
    read.set_bytes_per_second(bytes_per_second);
    read.set_samples(9);
    v1::CopyCost& host = *message.mutable_storage_cost()->mutable_host_read();
    host.set_bytes_per_second(1e9);
    host.set_samples(9);
    h_.SayMessage(kD0, message);
  }
  // The blocks that p0 is to fetch for a request.
  int64_t Fetched() {
    EXPECT_OK(h_.Submit("r", kPrompt));
    h_.Say(kD0, {Reserved(h_.NextRun(kD0).leg(), 0)});
    return h_.NextPrefill(kP0).fetch_blocks();
  }

  CoreHarness h_;
};

TEST_F(DiskHolderTest, AQuickDiskIsRead) {
  Store(Tier::kDisk, 1e9);
  EXPECT_EQ(Fetched(), (kPrompt - 1) / kBlockTokens);
}

TEST_F(DiskHolderTest, ASlowDiskIsNot) {
  Store(Tier::kDisk, kSlow);
  EXPECT_EQ(Fetched(), 0);
}

TEST_F(DiskHolderTest, HostMemoryAboveASlowDiskIs) {
  Store(Tier::kHost, kSlow);
  EXPECT_EQ(Fetched(), (kPrompt - 1) / kBlockTokens);
}

TEST_F(DiskHolderTest, WhatHostMemoryLostAndTheDiskHasIsPricedAsTheDisk) {
  Store(Tier::kHost, kSlow);
  Store(Tier::kDisk, kSlow);
  EXPECT_EQ(Fetched(), 0);
}

}  // namespace
}  // namespace tandem::router
