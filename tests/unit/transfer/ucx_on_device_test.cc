// Goal: payloads of device memory travel by real UCX (shared memory and TCP, eager and rendezvous)
// and by the in-process transport, as they are or through their twins, to and from peers whose
// blocks lie in host memory; a UCX without CUDA says so; and a trial finds what does not travel.
// The device is the emulated one, whose memory UCX reaches as the host's. Seeds are printed.
#include "common/transfer/ucx_on_device.h"

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
using ::tandem::testing::KvTransferMemory;
using ::tandem::testing::NewDeviceMemory;
using ::testing::HasSubstr;

constexpr int kLayers = 4;
constexpr int kBlocks = 16;

enum class Way { kHost, kStaged, kReached };

// A node: memory, transport, endpoint.
struct Node {
  Node(Way way, int64_t cell_bytes, uint64_t incarnation_in, InProcessNetwork* network,
       const std::string& ucx, const DevicePayloadOptions& slots = {})
      : incarnation(incarnation_in), cell(static_cast<size_t>(cell_bytes)) {
    arena = *kv::BlockArena::Create(
        {.num_layers = kLayers, .block_tokens = 16, .layer_block_bytes = cell_bytes}, kBlocks);
    if (way != Way::kHost) {
      device = std::make_shared<EmulatedMemory>(incarnation_in, *arena);
      payloads = NewDeviceMemory(device, *arena, slots, false).payloads;
    }
    if (network != nullptr) {
      transport = NewInProcessTransport(*network);
    } else {
      transport =
          *NewUcxTransport({ucx, "host", "fleet", way == Way::kReached ? payloads : nullptr});
    }
    if (way == Way::kStaged) transport = NewStagingTransport(std::move(transport), payloads);
    KvTransferOptions options;
    options.incarnation = incarnation;
    options.fleet_secret = "fleet";
    endpoint = KvTransferEndpoint::Create(options, *arena, *transport);
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
  std::unique_ptr<KvTransferEndpoint> endpoint;
};

constexpr int kSources[] = {3, 4, 9};
// Of up to three KV transfers at a time.
constexpr int kPlaces[][3] = {{7, 1, 2}, {8, 10, 11}, {12, 5, 14}};

std::vector<BlockId> Blocks(const int (&numbers)[3]) {
  std::vector<BlockId> blocks;
  for (const int number : numbers) blocks.push_back(BlockId(number));
  return blocks;
}

void StartKvTransfer(Node& from, Node& to, uint64_t id, const int (&places)[3],
                     absl::Time deadline) {
  const absl::Time now = absl::Now();
  const ExportId exported(id);
  to.endpoint->Handle(OpenLease{LeaseId(id), Epoch(1), 0, Blocks(places), deadline}, now);
  from.endpoint->Handle(
      OpenExport{exported,
                 PeerAddress{NodeId("to"), to.incarnation, to.transport->address(), "host"},
                 LeaseId(id), Epoch(1), 0, Blocks(kSources), deadline},
      now);
  from.endpoint->Handle(PushRange{exported, 0, 1, 0, kLayers}, now);
  for (int layer = 0; layer < kLayers; ++layer) {
    from.endpoint->Handle(PushRange{exported, 1, 2, layer, 1}, now);
  }
  from.endpoint->Handle(FinishExport{exported, {}, {}}, now);
}

// Moves random blocks from one node to other places of another, so many times at once, and
// compares.
void MoveBlocks(Node& from, Node& to, std::mt19937_64& random, int times = 1) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const int block : kSources) {
      for (std::byte& byte : from.Cell(layer, block)) byte = static_cast<std::byte>(random());
    }
  }
  for (int i = 0; i < times; ++i) StartKvTransfer(from, to, random(), kPlaces[i], deadline);
  int installed = 0, done = 0;
  while (installed + done < 2 * times) {
    for (const TransferEvent& event : from.Move()) {
      done += std::holds_alternative<ExportDone>(event) ? 1 : 0;
      ASSERT_FALSE(std::holds_alternative<ExportFailed>(event))
          << std::get<ExportFailed>(event).status;
    }
    for (const TransferEvent& event : to.Move()) {
      installed += std::holds_alternative<LeaseInstalled>(event) ? 1 : 0;
      ASSERT_FALSE(std::holds_alternative<LeaseFailed>(event))
          << std::get<LeaseFailed>(event).status;
    }
  }
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int i = 0; i < 3 * times; ++i) {
      ASSERT_EQ(from.Cell(layer, kSources[i % 3]), to.Cell(layer, kPlaces[i / 3][i % 3]))
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

// An export that finds no slot goes on when another one gives it back, and no payload is sent
// twice for want of one.
TEST_F(DeviceOverTransportTest, ExportsThatShareASlotAllEnd) {
  InProcessNetwork network;
  DevicePayloadOptions slots;
  slots.send_slots = slots.receive_slots = 1;
  Node sender(Way::kStaged, 96 << 10, 1, &network, "", slots);
  Node receiver(Way::kStaged, 96 << 10, 2, &network, "", slots);
  MoveBlocks(sender, receiver, random_, 3);
  EXPECT_EQ(receiver.endpoint->counters().frames_rejected, 0);
  EXPECT_EQ(receiver.endpoint->counters().checksum_failures, 0);
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
