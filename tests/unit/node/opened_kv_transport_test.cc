// Goal: a node takes the path for its KV that its configuration and its UCX allow: the device's
// where payloads of its memory travel, staged on decode nodes where they do not, the host's on
// prefill nodes then and wherever it is asked for; what is insisted on and is not there is named.
#include "common/node/opened_kv_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/transfer/ucx_on_device.h"
#include "tests/testing/emulated_memory.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

using ::testing::HasSubstr;
using ::testing::IsNull;
using ::testing::NotNull;

// An engine that has blocks and computes nothing.
class IdleEngine final : public engine::Engine {
 public:
  explicit IdleEngine(bool on_device)
      : arena_(*kv::BlockArena::Create(
            {.num_layers = 2, .block_tokens = 16, .layer_block_bytes = 1024}, 4)) {
    if (on_device) memory = std::make_unique<testing::EmulatedMemory>(3, *arena_);
  }
  const engine::EngineSpec& spec() const override { return spec_; }
  absl::StatusOr<int64_t> ProfileStepBytes(int64_t) override { return 0; }
  absl::Status AllocateKv(int64_t) override { return absl::OkStatus(); }
  kv::BlockArena& arena() override { return *arena_; }
  const kernels::DeviceBlocks* device_blocks() override {
    return memory == nullptr ? nullptr : &memory->blocks;
  }
  // In place of the arena one of 8 TiB, which no host has the memory for. False: it cannot be had.
  bool TakeHugeArena() {
    auto huge =
        kv::BlockArena::Create({.num_layers = 2, .block_tokens = 16, .layer_block_bytes = 1 << 20},
                               int64_t{1} << 22, kv::ArenaMemory::kUnreserved);
    if (huge.ok()) arena_ = *std::move(huge);
    return huge.ok();
  }
  void UseHostMirror(bool enabled) override { host_mirror = enabled; }
  absl::StatusOr<std::vector<engine::SampledToken>> Step(absl::Span<const engine::SequenceSlice>,
                                                         LayerDone) override {
    return absl::UnimplementedError("idle");
  }

  std::unique_ptr<testing::EmulatedMemory> memory;
  bool host_mirror = true;

 private:
  const engine::EngineSpec spec_;
  std::unique_ptr<kv::BlockArena> arena_;
};

absl::StatusOr<OpenedKvTransport> Open(IdleEngine& engine, const std::string& kv_path) {
  NodeConfig config;
  config.device = engine.memory == nullptr ? "cpu" : "cuda";
  config.kv.payload_memory = kv_path;
  return OpenKvTransport(config, "host", {}, engine);
}

TEST(OpenedKvTransportTest, IsTheDevicesWhereItsMemoryTravels) {
  for (const char* choice : {"auto", "device"}) {
    IdleEngine engine(/*on_device=*/true);
    ASSERT_OK_AND_ASSIGN(const OpenedKvTransport path, Open(engine, choice));
    EXPECT_TRUE(path.on_device) << choice;
    EXPECT_THAT(path.transport->payloads(), NotNull());
    EXPECT_FALSE(engine.host_mirror);
    EXPECT_THAT(path.why, HasSubstr("UCX"));
  }
}

TEST(OpenedKvTransportTest, IsTheHostsWhereThatIsAskedFor) {
  IdleEngine engine(/*on_device=*/true);
  ASSERT_OK_AND_ASSIGN(const OpenedKvTransport path, Open(engine, "host"));
  EXPECT_FALSE(path.on_device);
  EXPECT_THAT(path.transport->payloads(), IsNull());
  EXPECT_TRUE(engine.host_mirror);
}

// The host's copy of the device's KV grows to all of it: a node would be killed under load.
TEST(OpenedKvTransportTest, IsNotTheHostsWhereTheCopyHasNoRoom) {
  IdleEngine engine(/*on_device=*/true);
  if (!engine.TakeHugeArena()) GTEST_SKIP() << "the system reserves no 8 TiB of addresses";
  const absl::Status refused = Open(engine, "host").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("expected fewer kv-blocks, or kv-path device"));
}

TEST(OpenedKvTransportTest, IsStagedWhereUcxHasNoCuda) {
  if (transfer::UcxCarriesCuda().ok()) GTEST_SKIP() << transfer::DescribeUcx();
  IdleEngine engine(/*on_device=*/true);
  kernels::emulated::HideFromHost(*engine.memory->device);
  ASSERT_OK_AND_ASSIGN(const OpenedKvTransport path, Open(engine, "auto"));
  EXPECT_TRUE(path.on_device);
  EXPECT_THAT(path.transport->payloads(), NotNull());
  EXPECT_FALSE(engine.host_mirror);
  EXPECT_THAT(path.why, HasSubstr("carries host memory only"));
}

TEST(OpenedKvTransportTest, OfEnginesInHostMemoryIsTheHosts) {
  IdleEngine engine(/*on_device=*/false);
  ASSERT_OK_AND_ASSIGN(const OpenedKvTransport path, Open(engine, "auto"));
  EXPECT_FALSE(path.on_device);
  const absl::Status insisted = Open(engine, "device").status();
  EXPECT_EQ(insisted.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(insisted.message()), HasSubstr("kv-path is device, but device is cpu"));
}

}  // namespace
}  // namespace tandem::node
