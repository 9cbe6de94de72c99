// Goal: a step for which the device refuses memory fails alone, with kResourceExhausted, whichever
// of its buffers the device refuses; the steps after it deliver the tokens and the log-probability
// bits of an engine that was refused nothing. And where free memory bounds the KV cache, it leaves
// room for what a node allocates after it, on a device that hands memory out in large pieces.
#include "common/node/kv_sizing.h"
#include "common/transfer/device_payloads.h"
#include "tests/golden/cpu_engine/answer.h"
#include "tests/golden/device_engine/device_engines.h"

namespace tandem::engine {
namespace {

constexpr int64_t kBlocks = 80;
constexpr int64_t kRefuseAll = 1 << 20;
// More than an engine makes in one step.
constexpr int kAllocationsMax = 40;

class DeviceMemoryTest : public ::testing::Test {
 protected:
  struct Node {
    kernels::Device* device;
    std::unique_ptr<Engine> engine;
  };

  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(checkpoint_, model::Checkpoint::Open(testing::GoldenPath("tiny/llama")));
    Node node = NewNode();
    expected_ = Answers(*node.engine);
  }

  Node NewNode() {
    Node node;
    auto device = kernels::emulated::NewEmulatedDevice(7);
    node.device = device.get();
    auto engine =
        NewDeviceEngine(*checkpoint_, {.threads = 1, .block_tokens = 16}, std::move(device));
    EXPECT_OK(engine.status());
    node.engine = *std::move(engine);
    EXPECT_OK(node.engine->AllocateKv(kBlocks));
    return node;
  }

  // Two tokens of one sequence: a step with a prompt, and one that runs as a graph.
  Answer Answers(Engine& engine) {
    DrivenSequence sequence;
    sequence.tokens = {5, 9, 77, 3, 14};
    sequence.prompt_tokens = 5;
    sequence.sampling.logprobs = 2;
    sequence.blocks = TakeBlocks(engine.spec(), 0, 8);
    Answer answer;
    for (int i = 0; i < 2; ++i) {
      auto sampled = ComputeRest(&engine, &sequence, 100);
      EXPECT_OK(sampled.status());
      if (!sampled.ok()) return answer;
      answer.Add(*sampled);
      sequence.tokens.push_back(sampled->token);
    }
    return answer;
  }

  // A step of `count` sequences of one token each.
  absl::Status StepOfMany(Engine& engine, int count) {
    std::vector<DrivenSequence> sequences(static_cast<size_t>(count));
    std::vector<SequenceSlice> slices;
    for (int i = 0; i < count; ++i) {
      DrivenSequence& sequence = sequences[static_cast<size_t>(i)];
      sequence.tokens = {i % 100};
      sequence.prompt_tokens = 1;
      sequence.blocks = {BlockId(i)};
      slices.push_back(SliceOf(sequence, 1));
    }
    return engine.Step(slices, [](int) {}).status();
  }

  std::unique_ptr<model::Checkpoint> checkpoint_;
  Answer expected_;
};

TEST_F(DeviceMemoryTest, AStepBeyondTheDevicesMemoryFailsAlone) {
  Node node = NewNode();
  ExpectSame(Answers(*node.engine), expected_, "before");
  // Another process takes the rest.
  ASSERT_OK_AND_ASSIGN(const int64_t left, node.device->FreeBytes());
  kernels::emulated::LimitMemory(*node.device, 1);
  kernels::emulated::SetBytesOfOthers(*node.device, left);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(absl::IsResourceExhausted(StepOfMany(*node.engine, 65)));
    ExpectSame(Answers(*node.engine), expected_, "after a step that was refused memory");
  }
  kernels::emulated::SetBytesOfOthers(*node.device, 0);
  EXPECT_OK(StepOfMany(*node.engine, 65));
  ExpectSame(Answers(*node.engine), expected_, "after a large step");
}

// Where the buffers of before are had again, and where every allocation fails for a while.
TEST_F(DeviceMemoryTest, AnyAllocationMayBeRefused) {
  for (const int64_t count : {int64_t{1}, kRefuseAll}) {
    int refused = 0;
    for (; refused < kAllocationsMax; ++refused) {
      Node node = NewNode();
      ExpectSame(Answers(*node.engine), expected_, "before");
      kernels::emulated::RefuseAllocations(*node.device, refused, static_cast<int>(count));
      const absl::Status status = StepOfMany(*node.engine, 65);
      kernels::emulated::RefuseAllocations(*node.device, 0, 0);
      ExpectSame(Answers(*node.engine), expected_, "after");
      if (status.ok()) break;
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    }
    EXPECT_GT(refused, 10) << "so many buffers grew";
    EXPECT_LT(refused, kAllocationsMax);
  }
}

TEST_F(DeviceMemoryTest, TheFirstStepMayBeRefused) {
  int refused = 0;
  for (; refused < kAllocationsMax; ++refused) {
    Node node = NewNode();
    kernels::emulated::RefuseAllocations(*node.device, refused, kRefuseAll);
    const absl::Status status = StepOfMany(*node.engine, 1);
    kernels::emulated::RefuseAllocations(*node.device, 0, 0);
    ExpectSame(Answers(*node.engine), expected_, "after");
    if (status.ok()) break;
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  }
  EXPECT_GT(refused, 10) << "so many buffers were allocated";
  EXPECT_LT(refused, kAllocationsMax);
}

// A graph takes memory of its own. Steps for which it is refused run without one.
TEST_F(DeviceMemoryTest, GraphsMayBeRefused) {
  Node node = NewNode();
  kernels::emulated::RefuseGraphs(*node.device, kAllocationsMax);
  for (int i = 0; i < 3; ++i) ExpectSame(Answers(*node.engine), expected_, "without graphs");
  EXPECT_EQ(kernels::emulated::CallsOf(*node.device).graphs, 0);
  kernels::emulated::RefuseGraphs(*node.device, 0);
  EXPECT_OK(StepOfMany(*node.engine, 65)) << "larger buffers, for which graphs are made anew";
  ExpectSame(Answers(*node.engine), expected_, "with graphs");
  EXPECT_GT(kernels::emulated::CallsOf(*node.device).graphs, 0);
}

// Sequences' block tables grow by an entry now and then. That moves the step's buffers, and so
// costs the captured graphs, seldom: not whenever a sequence begins a block.
TEST_F(DeviceMemoryTest, GrowingTablesCostFewGraphs) {
  constexpr int kSequences = 20;
  constexpr int64_t kBlocksBefore = 3;
  for (const bool profiled : {false, true}) {
    Node node;
    auto device = kernels::emulated::NewEmulatedDevice(7);
    node.device = device.get();
    ASSERT_OK_AND_ASSIGN(
        node.engine,
        NewDeviceEngine(*checkpoint_, {.threads = 1, .block_tokens = 16}, std::move(device)));
    if (profiled) {
      ASSERT_OK(node.engine->ProfileStepBytes(32).status());
    }
    ASSERT_OK(node.engine->AllocateKv(kSequences * 2 * kBlocksBefore));
    std::vector<DrivenSequence> sequences(kSequences);
    BlockId next(0);
    const auto begin_block = [&](DrivenSequence& sequence) {
      sequence.blocks.push_back(next);
      next = BlockId(next.value() + 1);
    };
    for (int i = 0; i < kSequences; ++i) {
      DrivenSequence& sequence = sequences[static_cast<size_t>(i)];
      sequence.computed = 16 * kBlocksBefore - 1 - i % 16;
      sequence.tokens.assign(static_cast<size_t>(sequence.computed) + 1, 5);
      sequence.prompt_tokens = 1;
      for (int64_t block = 0; block < kBlocksBefore; ++block) begin_block(sequence);
    }
    int without_graph = 0;
    for (int step = 0; step < 14; ++step) {
      std::vector<SequenceSlice> slices;
      for (DrivenSequence& sequence : sequences) {
        if (sequence.computed == 16 * std::ssize(sequence.blocks)) begin_block(sequence);
        slices.push_back(SliceOf(sequence, 1));
      }
      // From the third step on a new graph is refused: then the step runs without one.
      if (step == 2) kernels::emulated::RefuseGraphs(*node.device, kAllocationsMax);
      const int64_t before = kernels::emulated::CallsOf(*node.device).graphs;
      ASSERT_OK(node.engine->Step(slices, [](int) {}).status());
      if (kernels::emulated::CallsOf(*node.device).graphs == before) ++without_graph;
      for (DrivenSequence& sequence : sequences) {
        ++sequence.computed;
        sequence.tokens.push_back(5);
      }
    }
    EXPECT_LE(without_graph, 1) << "the first step loads the kernels";
  }
}

// Options of a request that need more room than is reserved for a row.
TEST_F(DeviceMemoryTest, TheSamplersBuffersMayBeRefused) {
  DrivenSequence sequence;
  sequence.tokens = {5, 9, 77};
  sequence.prompt_tokens = 3;
  for (TokenId token = 0; token < 140; ++token) {
    sequence.sampling.logit_bias.push_back({token, token == 11 ? 90.0f : -1.0f});
  }
  sequence.blocks = {BlockId(0)};
  int refused = 0;
  for (; refused < kAllocationsMax; ++refused) {
    Node node = NewNode();
    ExpectSame(Answers(*node.engine), expected_, "before");  // a step as large
    const SequenceSlice slice = SliceOf(sequence, 3);
    const auto step = [&] { return node.engine->Step(absl::MakeConstSpan(&slice, 1), [](int) {}); };
    kernels::emulated::RefuseAllocations(*node.device, refused, 1);
    const auto first = step();
    kernels::emulated::RefuseAllocations(*node.device, 0, 0);
    const auto second = step();
    ASSERT_OK(second.status());
    EXPECT_EQ(second->at(0).token, 11);
    if (first.ok()) break;
    EXPECT_TRUE(absl::IsResourceExhausted(first.status())) << first.status();
  }
  EXPECT_GE(refused, 2) << "pinned and device memory";
  EXPECT_LT(refused, kAllocationsMax);
}

TEST_F(DeviceMemoryTest, TheKvCacheLeavesRoomForWhatComesAfterIt) {
  constexpr int64_t kGranule = 2 << 20;
  transfer::DevicePayloadOptions payloads;
  for (const int64_t free_bytes : {224 << 20, 251 << 20}) {
    auto device = kernels::emulated::NewEmulatedDevice(7);
    kernels::Device& same = *device;
    DeviceEngineOptions options = {.threads = 1, .block_tokens = 16};
    options.payload_slots = payloads.slots();
    options.payload_slot_bytes = payloads.payload_bytes_max;
    ASSERT_OK_AND_ASSIGN(const auto engine,
                         NewDeviceEngine(*checkpoint_, options, std::move(device)));
    kernels::emulated::LimitMemory(same, kGranule);
    ASSERT_OK_AND_ASSIGN(const int64_t all, same.FreeBytes());
    kernels::emulated::SetBytesOfOthers(same, all - free_bytes);
    node::NodeConfig config;
    config.max_batch_tokens = 32;
    config.max_sequences = 1 << 20;  // no bound of its own
    ASSERT_OK_AND_ASSIGN(const node::KvSize size, node::ChooseKvSize(config, *engine));
    EXPECT_GT(size.blocks * engine->spec().layout.block_bytes(), free_bytes / 4);
    ASSERT_OK(engine->AllocateKv(size.blocks));
    payloads.format = engine->spec().format;
    const auto slots =
        transfer::DevicePayloads::Create(payloads, *engine->device_blocks(), engine->arena());
    ASSERT_OK(slots.status());
    ExpectSame(Answers(*engine), expected_, "beside slots");
    EXPECT_OK(StepOfMany(*engine, 65)) << "a step with more logits than the profiled one";
  }
}

// Where a flag names the KV blocks, steps have their buffers before the cache takes the rest.
TEST_F(DeviceMemoryTest, StepsHaveRoomBesideAGivenNumberOfBlocks) {
  auto device = kernels::emulated::NewEmulatedDevice(7);
  kernels::Device& same = *device;
  ASSERT_OK_AND_ASSIGN(
      const auto engine,
      NewDeviceEngine(*checkpoint_, {.threads = 1, .block_tokens = 16, .max_sequences = 256},
                      std::move(device)));
  node::NodeConfig config;
  config.kv.blocks = 4 * kBlocks;
  config.max_batch_tokens = 256;
  ASSERT_OK_AND_ASSIGN(const node::KvSize size, node::ChooseKvSize(config, *engine));
  EXPECT_EQ(size.blocks, config.kv.blocks);
  ASSERT_OK(engine->AllocateKv(size.blocks));
  ExpectSame(Answers(*engine), expected_, "before");
  ASSERT_OK_AND_ASSIGN(const int64_t left, same.FreeBytes());
  kernels::emulated::LimitMemory(same, 1);
  kernels::emulated::SetBytesOfOthers(same, left);
  EXPECT_OK(StepOfMany(*engine, 256));
}

}  // namespace
}  // namespace tandem::engine
