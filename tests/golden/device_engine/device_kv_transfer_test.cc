// Goal: a prompt computed by one device engine continues on another to the bit when its blocks
// travel from device memory to device memory by the real KV transfer, layer by layer as they are
// computed; the same when one of the two keeps the host's side; and without it no block of KV
// passes the arena. Seeds are printed.
#include <iostream>
#include <random>

#include "common/transfer/device_payloads.h"
#include "common/transfer/in_process_transport.h"
#include "common/transfer/kv_transfer_endpoint.h"
#include "common/transfer/staging_transport.h"
#include "tests/golden/cpu_engine/answer.h"
#include "tests/golden/device_engine/device_engines.h"

namespace tandem::engine {
namespace {

constexpr int64_t kBlocks = 64;
constexpr int64_t kOutputTokens = 4;

// An engine with its KV plane.
struct KvTransferNode {
  KvTransferNode(std::unique_ptr<Engine> engine_in, transfer::InProcessNetwork& network,
                 uint64_t incarnation_in, bool on_device)
      : incarnation(incarnation_in), engine(std::move(engine_in)) {
    transport = transfer::NewInProcessTransport(network);
    if (on_device) {
      transfer::DevicePayloadOptions options;
      options.format = engine->spec().format;
      auto payloads =
          transfer::DevicePayloads::Create(options, *engine->device_blocks(), engine->arena());
      EXPECT_OK(payloads.status());
      transport = transfer::NewStagingTransport(std::move(transport), *std::move(payloads));
      engine->UseHostMirror(false);
    }
    transfer::KvTransferOptions options;
    options.incarnation = incarnation;
    options.format = engine->spec().format;
    endpoint = transfer::KvTransferEndpoint::Create(options, engine->arena(), *transport);
  }
  // Whether the event came.
  template <typename Event>
  bool Moved() {
    transport->Progress();
    endpoint->Tick(absl::Now());
    bool found = false;
    for (const transfer::TransferEvent& event : endpoint->TakeEvents()) {
      found = found || std::holds_alternative<Event>(event);
    }
    return found;
  }
  bool ArenaIsUntouched() const {
    for (int layer = 0; layer < engine->spec().layout.num_layers; ++layer) {
      for (int block = 0; block < kBlocks; ++block) {
        for (const std::byte byte : engine->arena().Block(layer, BlockId(block))) {
          if (byte != std::byte{0}) return false;
        }
      }
    }
    return true;
  }

  const Incarnation incarnation;
  const std::unique_ptr<Engine> engine;
  std::unique_ptr<transfer::KvTransport> transport;
  std::unique_ptr<transfer::KvTransferEndpoint> endpoint;
};

class DeviceKvTransferTest
    : public ::testing::TestWithParam<std::tuple<DeviceKind, const char*, bool, bool>> {
 protected:
  void SetUp() override {
    kind_ = std::get<0>(GetParam());
    if (DeviceIsMissing(kind_)) GTEST_SKIP() << "needs a GPU: " << kernels::DescribeCuda();
    const uint64_t seed = std::random_device()();
    random_.seed(seed);
    std::cout << "seed " << seed << "\n";
    ASSERT_OK_AND_ASSIGN(checkpoint_, model::Checkpoint::Open(testing::GoldenPath("tiny/llama")));
  }
  std::unique_ptr<Engine> NewEngine() {
    DeviceEngineOptions options;
    options.threads = 1;
    options.block_tokens = 16;
    options.kv_type = std::get<1>(GetParam());
    auto engine = NewEngineOn(kind_, *checkpoint_, options);
    EXPECT_OK(engine.status());
    if (!engine.ok()) return nullptr;
    EXPECT_OK((*engine)->AllocateKv(kBlocks));
    return *std::move(engine);
  }
  DrivenSequence NewRequest(int64_t context_tokens) {
    DrivenSequence request;
    request.prompt_tokens = std::min<int64_t>(33 + random_() % 20, context_tokens - kOutputTokens);
    for (int64_t i = 0; i < request.prompt_tokens; ++i) {
      request.tokens.push_back(static_cast<TokenId>(random_() % 144));
    }
    request.sampling.logprobs = 3;
    return request;
  }
  static void Continue(Engine& engine, DrivenSequence& request, int64_t outputs, Answer& answer) {
    for (int64_t i = 0; i < outputs; ++i) {
      auto sampled = ComputeRest(&engine, &request, 1000);
      ASSERT_OK(sampled.status());
      answer.Add(*sampled);
      request.tokens.push_back(sampled->token);
    }
  }
  // Computes the prompt at `from` while its blocks travel to `to`, and goes on there.
  void MoveAndContinue(KvTransferNode& from, KvTransferNode& to, DrivenSequence request,
                       std::vector<BlockId> places, Answer& answer) {
    const auto count =
        static_cast<int32_t>(from.engine->spec().layout.BlocksFor(request.prompt_tokens));
    const std::vector<BlockId> sources(request.blocks.begin(), request.blocks.begin() + count);
    const LeaseId lease(1);
    const transfer::ExportId exported(1);
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    to.endpoint->Handle(
        transfer::OpenLease{lease, Epoch(1), 0, {places.begin(), places.begin() + count}, deadline},
        absl::Now());
    from.endpoint->Handle(
        transfer::OpenExport{exported,
                             {NodeId("to"), to.incarnation, to.transport->address(), "host"},
                             lease,
                             Epoch(1),
                             0,
                             sources,
                             deadline},
        absl::Now());
    const SequenceSlice prompt = SliceOf(request, request.prompt_tokens);
    auto first = from.engine->Step(absl::MakeConstSpan(&prompt, 1), [&](int layer) {
      from.endpoint->Handle(transfer::PushRange{exported, 0, count, layer, 1}, absl::Now());
    });
    ASSERT_OK(first.status());
    answer.Add(first->at(0));
    from.endpoint->Handle(transfer::FinishExport{exported, {}, {}}, absl::Now());
    while (!to.Moved<transfer::LeaseInstalled>()) {
      ASSERT_LT(absl::Now(), deadline);
      from.Moved<transfer::ExportDone>();
    }
    request.tokens.push_back(first->at(0).token);
    request.computed = request.prompt_tokens;
    request.blocks = std::move(places);
    Continue(*to.engine, request, kOutputTokens - 1, answer);
  }

  DeviceKind kind_ = DeviceKind::kEmulated;
  std::mt19937_64 random_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
};

TEST_P(DeviceKvTransferTest, ContinuesToTheBit) {
  const auto [kind, kv_type, sender_on_device, receiver_on_device] = GetParam();
  transfer::InProcessNetwork network;
  KvTransferNode sender(NewEngine(), network, 1, sender_on_device);
  KvTransferNode receiver(NewEngine(), network, 2, receiver_on_device);
  DrivenSequence request = NewRequest(sender.engine->spec().context_tokens);
  std::vector<BlockId> blocks =
      TakeBlocks(sender.engine->spec(), 5, request.prompt_tokens + kOutputTokens);
  Answer expected, moved;
  {
    const std::unique_ptr<Engine> alone = NewEngine();
    DrivenSequence same = request;
    same.blocks = blocks;
    Continue(*alone, same, kOutputTokens, expected);
  }
  std::shuffle(blocks.begin(), blocks.end(), random_);
  request.blocks = blocks;
  std::vector<BlockId> places =
      TakeBlocks(sender.engine->spec(), 30, request.prompt_tokens + kOutputTokens);
  std::shuffle(places.begin(), places.end(), random_);
  MoveAndContinue(sender, receiver, request, places, moved);
  ExpectSame(moved, expected, "moved");
  if (sender_on_device) {
    EXPECT_TRUE(sender.ArenaIsUntouched());
  }
  if (receiver_on_device) {
    EXPECT_TRUE(receiver.ArenaIsUntouched());
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, DeviceKvTransferTest,
    ::testing::Combine(::testing::Values(DeviceKind::kEmulated, DeviceKind::kCuda),
                       ::testing::Values("bf16", "int8"), ::testing::Bool(), ::testing::Bool()),
    [](const auto& info) {
      return DeviceKindName(std::get<0>(info.param)) + "_" + std::get<1>(info.param) +
             (std::get<2>(info.param) ? "_FromDevice" : "_FromHost") +
             (std::get<3>(info.param) ? "ToDevice" : "ToHost");
    });

}  // namespace
}  // namespace tandem::engine
