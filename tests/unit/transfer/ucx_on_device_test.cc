// Goal: payloads of device memory travel by real UCX (shared memory and TCP, eager and rendezvous)
// and by the in-process transport, as they are or through their twins, to and from peers whose
// blocks lie in host memory; a UCX without CUDA says so; and a trial finds what does not travel.
// The device is the emulated one, whose memory UCX reaches as the host's. Seeds are printed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ucp/api/ucp.h>

#include <random>

#include "common/transfer/in_process_transport.h"
#include "common/transfer/ucx_transport.h"
#include "tests/testing/emulated_memory.h"
#include "tests/testing/status_matchers.h"

namespace tandem::transfer {
namespace {

using ::tandem::testing::EmulatedMemory;
using ::tandem::testing::HandoffMemory;
using ::tandem::testing::NewDeviceMemory;
using ::testing::HasSubstr;

constexpr int kLayers = 4;
constexpr int kBlocks = 16;

enum class Way { kHost, kStaged, kReached };

// A node: memory, transport, endpoint.
struct Node {
  Node(Way way, int64_t cell_bytes, uint64_t incarnation_in, InProcessNetwork* network,
       const std::string& ucx)
      : incarnation(incarnation_in), cell(static_cast<size_t>(cell_bytes)) {
    arena = *kv::BlockArena::Create(
        {.num_layers = kLayers, .block_tokens = 16, .layer_block_bytes = cell_bytes}, kBlocks);
    if (way != Way::kHost) {
      device = std::make_shared<EmulatedMemory>(incarnation_in, *arena);
      payloads = NewDeviceMemory(device, *arena, {}, false).payloads;
    }
    if (network != nullptr) {
      transport = NewInProcessTransport(*network);
    } else {
      transport =
          *NewUcxTransport({ucx, "host", "fleet", way == Way::kReached ? payloads : nullptr});
    }
    if (way == Way::kStaged) transport = NewStagingTransport(std::move(transport), payloads);
    HandoffOptions options;
    options.incarnation = incarnation;
    options.fleet_secret = "fleet";
    endpoint = HandoffEndpoint::Create(options, *arena, *transport);
  }
  absl::Span<std::byte> Cell(int layer, int block) const {
    if (device == nullptr) return arena->Block(layer, BlockId(block));
    std::byte* region = reinterpret_cast<std::byte*>(device->blocks.regions[layer]);
    return absl::MakeSpan(region + block * cell, cell);
  }
  std::vector<TransferEvent> Move() {
    transport->Progress();
    endpoint->Tick(absl::Now());
    return endpoint->TakeEvents();
  }

  const Incarnation incarnation;
  const size_t cell;
  std::unique_ptr<kv::BlockArena> arena;
  std::shared_ptr<EmulatedMemory> device;
  std::shared_ptr<DevicePayloads> payloads;
  std::unique_ptr<KvTransport> transport;
  std::unique_ptr<HandoffEndpoint> endpoint;
};

// Moves random blocks from one node to other places of another, and compares.
void MoveBlocks(Node& from, Node& to, std::mt19937_64& random) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  const std::vector<BlockId> sources = {BlockId(3), BlockId(4), BlockId(9)};
  const std::vector<BlockId> places = {BlockId(7), BlockId(1), BlockId(2)};
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const BlockId block : sources) {
      for (std::byte& byte : from.Cell(layer, block.value())) {
        byte = static_cast<std::byte>(random());
      }
    }
  }
  const LeaseId lease(random());
  const ExportId exported(random());
  to.endpoint->Handle(OpenLease{lease, Epoch(1), 0, places, deadline}, absl::Now());
  from.endpoint->Handle(
      OpenExport{exported,
                 PeerAddress{NodeId("to"), to.incarnation, to.transport->address(), "host"}, lease,
                 Epoch(1), 0, sources, deadline},
      absl::Now());
  from.endpoint->Handle(PushRange{exported, 0, 1, 0, kLayers}, absl::Now());
  for (int layer = 0; layer < kLayers; ++layer) {
    from.endpoint->Handle(PushRange{exported, 1, 2, layer, 1}, absl::Now());
  }
  from.endpoint->Handle(FinishExport{exported, {}, {}}, absl::Now());
  bool installed = false, done = false;
  while (!(installed && done) && absl::Now() < deadline) {
    for (const TransferEvent& event : from.Move()) {
      done = done || std::holds_alternative<ExportDone>(event);
      ASSERT_FALSE(std::holds_alternative<ExportFailed>(event))
          << std::get<ExportFailed>(event).status;
    }
    for (const TransferEvent& event : to.Move()) {
      installed = installed || std::holds_alternative<LeaseInstalled>(event);
      ASSERT_FALSE(std::holds_alternative<LeaseFailed>(event))
          << std::get<LeaseFailed>(event).status;
    }
  }
  ASSERT_TRUE(installed && done);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (size_t i = 0; i < sources.size(); ++i) {
      ASSERT_EQ(from.Cell(layer, sources[i].value()), to.Cell(layer, places[i].value()))
          << "layer " << layer << " block " << i;
    }
  }
  for (const Node* node : {&from, &to}) {
    if (node->payloads != nullptr) {
      EXPECT_EQ(node->payloads->slots_in_use(), 0);
    }
  }
}

class DeviceOverTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const uint64_t seed = std::random_device()();
    random_.seed(seed);
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  }
  // Small cells go eagerly, large ones by rendezvous.
  void MoveBetween(Way from, Way to, InProcessNetwork* network, const std::string& ucx) {
    for (const int64_t cell_bytes : {int64_t{256}, int64_t{96} << 10}) {
      SCOPED_TRACE(cell_bytes);
      Node sender(from, cell_bytes, 1, network, ucx), receiver(to, cell_bytes, 2, network, ucx);
      MoveBlocks(sender, receiver, random_);
      MoveBlocks(receiver, sender, random_);
    }
  }
  std::mt19937_64 random_;
};

TEST_F(DeviceOverTransportTest, InProcess) {
  InProcessNetwork network;
  MoveBetween(Way::kStaged, Way::kStaged, &network, "");
  MoveBetween(Way::kStaged, Way::kHost, &network, "");
}

TEST_F(DeviceOverTransportTest, UcxSharedMemory) {
  MoveBetween(Way::kReached, Way::kReached, nullptr, "shm");
  MoveBetween(Way::kReached, Way::kHost, nullptr, "shm");
  MoveBetween(Way::kStaged, Way::kReached, nullptr, "shm");
}

TEST_F(DeviceOverTransportTest, UcxTcp) {
  MoveBetween(Way::kReached, Way::kStaged, nullptr, "tcp");
  MoveBetween(Way::kHost, Way::kReached, nullptr, "tcp");
}

class UcxTrialTest : public ::testing::Test {
 protected:
  UcxTrialTest() { NewPayloads(96 << 10); }
  void NewPayloads(int64_t cell_bytes) {
    payloads_.reset();
    arena_ = *kv::BlockArena::Create(
        {.num_layers = kLayers, .block_tokens = 16, .layer_block_bytes = cell_bytes}, kBlocks);
    device_ = std::make_shared<EmulatedMemory>(5, *arena_);
    payloads_ = NewDeviceMemory(device_, *arena_, {}, false).payloads;
  }
  std::unique_ptr<kv::BlockArena> arena_;
  std::shared_ptr<EmulatedMemory> device_;
  std::shared_ptr<DevicePayloads> payloads_;
};

TEST_F(UcxTrialTest, FindsThatPayloadsTravel) {
  for (const char* transports : {"shm", "tcp", "auto"}) {
    EXPECT_OK(TryUcxOnDevice({transports, "host", "fleet", payloads_})) << transports;
  }
  EXPECT_EQ(payloads_->slots_in_use(), 0);
}

TEST_F(UcxTrialTest, FindsBytesThatDoNotArriveAsTheyWere) {
  NewPayloads(256);  // small ones are copied in from UCX's own memory
  EXPECT_OK(TryUcxOnDevice({"tcp", "host", "fleet", payloads_}));
  kernels::emulated::DamageCopies(*device_->device, 1, 256);
  const absl::Status status = TryUcxOnDevice({"tcp", "host", "fleet", payloads_});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(payloads_->slots_in_use(), 0);
}

TEST_F(UcxTrialTest, AUcxWithoutCudaSaysSo) {
  const absl::Status carries = UcxCarriesCuda();
  EXPECT_THAT(DescribeUcx(), HasSubstr(ucp_get_version_string()));
  if (carries.ok()) GTEST_SKIP() << DescribeUcx();
  EXPECT_EQ(carries.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(carries.message()), HasSubstr(ucp_get_version_string()));
  EXPECT_THAT(std::string(carries.message()), HasSubstr("host memory only"));
  EXPECT_THAT(DescribeUcx(), HasSubstr("host memory only"));
  // Memory that is not the host's wants CUDA: the trial ends where UCX begins.
  kernels::emulated::HideFromHost(*device_->device);
  const absl::Status trial = TryUcxOnDevice({"auto", "host", "fleet", payloads_});
  EXPECT_EQ(trial.code(), absl::StatusCode::kUnimplemented) << trial;
  EXPECT_THAT(std::string(trial.message()), HasSubstr("without CUDA"));
}

}  // namespace
}  // namespace tandem::transfer
