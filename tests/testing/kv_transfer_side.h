// One of the nodes of a KvTransferWorld: its blocks, in the host's arena or in a device's memory,
// its transport and its endpoint. Thread safety: none.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/runtime/clock.h"
#include "common/transfer/device_payloads.h"
#include "common/transfer/kv_transfer_endpoint.h"
#include "common/transfer/nccl_transport.h"
#include "common/transfer/sealed_transport.h"
#include "common/transfer/staging_transport.h"
#include "tests/testing/faulty_network.h"
#include "tests/testing/loopback_channels.h"

namespace tandem::testing {

// The world's time.
struct KvTransferClock final : Clock {
  absl::Time Now() const override { return now; }
  absl::Time now = absl::UnixEpoch();
};

// Where a side's blocks lie when not in its arena.
struct KvTransferMemory {
  std::shared_ptr<void> owner;  // of the memory
  std::shared_ptr<transfer::DevicePayloads> payloads;
  std::vector<char*> regions;  // by layer
  bool staged = false;         // the network carries host memory only
};
// An empty one for a side whose blocks lie in its arena.
using NewKvTransferMemory =
    std::function<KvTransferMemory(Incarnation side, kv::BlockArena& arena)>;

// What lies between a side and the network.
struct KvTransferLayers {
  LoopbackChannels* channels = nullptr;  // null: payloads take the network
  std::optional<transfer::SealedTransportOptions> sealed;
};

// One node: memory, transport, endpoint, and the blocks without an owner.
struct KvTransferSide {
  static constexpr int kLayers = 3;
  static constexpr int64_t kCellBytes = 256;
  static constexpr int kBlocks = 48;
  static constexpr auto kFree = std::byte{0xFE};    // in blocks without an owner
  static constexpr auto kLeased = std::byte{0xAA};  // in blocks of a new lease
  static constexpr auto kReused = std::byte{0x55};  // in source blocks whose export ended

  KvTransferSide(FaultyNetwork& network, const KvTransferLayers& layers,
                 const KvTransferClock& clock, Incarnation incarnation_in,
                 const NewKvTransferMemory& new_memory)
      : incarnation(incarnation_in) {
    arena = *kv::BlockArena::Create(
        {.num_layers = kLayers, .block_tokens = 16, .layer_block_bytes = kCellBytes}, kBlocks);
    if (new_memory) memory = new_memory(incarnation, *arena);
    auto faulty = network.NewTransport();
    wire = faulty.get();
    transport = std::move(faulty);
    if (layers.sealed.has_value()) {
      transfer::SealedTransportOptions sealed = *layers.sealed;
      sealed.clock = &clock;
      transport = transfer::NewSealedTransport(sealed, std::move(transport));
    }
    if (memory.payloads != nullptr && memory.staged) {
      transport = transfer::NewStagingTransport(std::move(transport), memory.payloads);
    } else {
      wire->set_payloads(memory.payloads.get());
    }
    if (layers.channels != nullptr) AddChannels(*layers.channels, clock);
    transfer::KvTransferOptions options;
    options.incarnation = incarnation;
    options.fleet_secret = "fleet";
    options.frame_bytes_min = 4 * kCellBytes;
    options.frame_bytes_max = 6 * kCellBytes;
    options.peer_bytes_in_flight_max = 20 * kCellBytes;
    options.nack_after = absl::Milliseconds(20);
    options.drain_after = absl::Milliseconds(100);
    endpoint = transfer::KvTransferEndpoint::Create(options, *arena, *transport);
    for (int i = 0; i < kBlocks; ++i) {
      free.push_back(BlockId(i));
      Fill(BlockId(i), kFree);
    }
  }
  void AddChannels(LoopbackChannels& channels, const KvTransferClock& clock) {
    transfer::NcclTransportOptions options;
    options.fleet_secret = "fleet";
    options.open_within = absl::Milliseconds(60);
    options.move_within = absl::Milliseconds(50);
    options.clock = &clock;
    options.device = memory.payloads;
    transport = transfer::NewNcclTransport(
        options, std::move(transport),
        channels.NewEnd(3, 6 * kCellBytes,
                        memory.payloads != nullptr ? kernels::SlotMemory::kDevice
                                                   : kernels::SlotMemory::kHost));
  }
  absl::Span<std::byte> Cell(int layer, BlockId block) const {
    if (memory.payloads == nullptr) return arena->Block(layer, block);
    return absl::MakeSpan(reinterpret_cast<std::byte*>(memory.regions[static_cast<size_t>(layer)]) +
                              block.value() * kCellBytes,
                          kCellBytes);
  }
  void Fill(BlockId block, std::byte value) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const absl::Span<std::byte> cell = Cell(layer, block);
      std::memset(cell.data(), static_cast<int>(value), cell.size());
    }
  }
  bool Holds(BlockId block, std::byte value) const {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const std::byte byte : Cell(layer, block)) {
        if (byte != value) return false;
      }
    }
    return true;
  }
  Incarnation incarnation;
  std::unique_ptr<kv::BlockArena> arena;
  KvTransferMemory memory;
  FaultyNetwork::Transport* wire = nullptr;
  std::unique_ptr<transfer::KvTransport> transport;
  std::unique_ptr<transfer::KvTransferEndpoint> endpoint;
  std::vector<BlockId> free;
};

}  // namespace tandem::testing
