// Goal: a device's payloads are what the host would send, byte for byte and by checksum; nothing
// reaches a block before it is verified, wherever it landed and in whatever order; slots are
// bounded and come back. Seeds are printed.
#include "common/transfer/device_payloads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "common/transfer/frame_auth.h"
#include "tests/testing/emulated_memory.h"
#include "tests/testing/status_matchers.h"

namespace tandem::transfer {
namespace {

using ::tandem::testing::EmulatedMemory;
using ::tandem::testing::NewDeviceMemory;

constexpr int kLayers = 3;
constexpr int kBlocks = 12;
// Two heads of 16 dimensions, 16 tokens, bf16.
constexpr int64_t kCellBytes = 2 * 2 * 16 * 16 * 2;
const kv::BlockFormat kFormat = {"bf16", 2, 16, 16, kLayers, std::string(kv::kRowsOrder)};

class DevicePayloadsTest : public ::testing::Test {
 protected:
  DevicePayloadsTest() {
    const uint64_t seed = std::random_device()();
    random_.seed(seed);
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    arena_ = *kv::BlockArena::Create(
        {.num_layers = kLayers, .block_tokens = 16, .layer_block_bytes = kCellBytes}, kBlocks);
    memory_ = std::make_shared<EmulatedMemory>(seed, *arena_);
    DevicePayloadOptions options;
    options.format = kFormat;
    options.payload_bytes_max = 6 * kCellBytes;
    options.send_slots = 2;
    options.receive_slots = 2;
    payloads_ = NewDeviceMemory(memory_, *arena_, options, false).payloads;
    for (char* region : memory_->blocks.regions) {
      for (int64_t i = 0; i < kBlocks * kCellBytes; ++i) region[i] = static_cast<char>(random_());
    }
  }

  absl::Span<std::byte> Cell(int layer, BlockId block) const {
    std::byte* region = reinterpret_cast<std::byte*>(memory_->blocks.regions[layer]);
    return absl::MakeSpan(region + block.value() * kCellBytes, kCellBytes);
  }
  // Layer by layer, block by block.
  std::vector<std::byte> Contents(const PayloadCells& cells) const {
    std::vector<std::byte> bytes;
    for (int layer = 0; layer < cells.range.layer_count; ++layer) {
      for (int i = 0; i < cells.range.ordinal_count; ++i) {
        const auto cell = Cell(cells.range.first_layer + layer, cells.block(i));
        bytes.insert(bytes.end(), cell.begin(), cell.end());
      }
    }
    return bytes;
  }
  std::vector<std::byte> RandomPayload() {
    std::vector<std::byte> payload(4 * kCellBytes);
    for (std::byte& byte : payload) byte = static_cast<std::byte>(random_());
    return payload;
  }
  static uint64_t ChecksumOf(absl::Span<const std::byte> payload) {
    return PayloadChecksum({payload});
  }
  static void Land(const std::vector<std::byte>& payload, const ScatterList& place) {
    const std::byte* from = payload.data();
    for (const absl::Span<std::byte> piece : place) {
      std::memcpy(piece.data(), from, piece.size());
      from += piece.size();
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<kv::BlockArena> arena_;
  std::shared_ptr<EmulatedMemory> memory_;
  std::shared_ptr<DevicePayloads> payloads_;
  const std::vector<BlockId> blocks_ = {BlockId(9), BlockId(2), BlockId(3), BlockId(7)};
  // Ordinals 6 and 7 of a lease that begins at 5, two layers.
  const PayloadCells cells_ = {
      {.first_ordinal = 6, .ordinal_count = 2, .first_layer = 1, .layer_count = 2}, blocks_, 5};
};

TEST_F(DevicePayloadsTest, AreWhatTheHostWouldSend) {
  ASSERT_OK_AND_ASSIGN(auto payload, payloads_->Take(cells_));
  ASSERT_TRUE(payload.has_value());
  ASSERT_EQ(payload->bytes.size(), 1u);
  const std::vector<std::byte> expected = Contents(cells_);
  EXPECT_EQ(payload->bytes[0], absl::MakeConstSpan(expected));
  EXPECT_EQ(payload->checksum, ChecksumOf(expected));
}

TEST_F(DevicePayloadsTest, ReachNoBlockBeforeTheyAreVerified) {
  const std::vector<std::byte> payload = RandomPayload(), before = Contents(cells_);
  std::vector<PayloadStore::Landing> taken;
  for (const bool spilled : {false, true}) {
    ASSERT_OK_AND_ASSIGN(PayloadStore::Landing place, payloads_->Reserve(cells_));
    EXPECT_EQ(payloads_->Holds(place.bytes[0].data()), !spilled);
    Land(payload, place.bytes);
    const absl::Status damaged =
        payloads_->Install(cells_, place, ChecksumOf(payload) ^ 1, "rows", std::nullopt);
    EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss) << damaged;
    EXPECT_EQ(Contents(cells_), before) << "spilled " << spilled;
    EXPECT_OK(payloads_->Install(cells_, place, ChecksumOf(payload), "rows", std::nullopt));
    EXPECT_EQ(Contents(cells_), payload) << "spilled " << spilled;
    Land(before, {Cell(1, cells_.block(0)), Cell(1, cells_.block(1)), Cell(2, cells_.block(0)),
                  Cell(2, cells_.block(1))});
    taken.push_back(std::move(place));
    // The other slot too: what comes now lands on the host.
    ASSERT_OK_AND_ASSIGN(PayloadStore::Landing other, payloads_->Reserve(cells_));
    taken.push_back(std::move(other));
  }
  EXPECT_EQ(payloads_->slots_in_use(), 2);
  EXPECT_EQ(payloads_->spilled(), 2);
  taken.clear();
  EXPECT_EQ(payloads_->slots_in_use(), 0);
}

TEST_F(DevicePayloadsTest, ArePutInOrder) {
  for (const absl::string_view order : {kv::kTilesOrder, kv::kPairsOrder}) {
    const std::vector<std::byte> payload = RandomPayload();
    std::vector<std::byte> expected = payload;
    for (size_t i = 0; i < 4; ++i) {
      kv::Reorder(kFormat, order, absl::MakeSpan(expected).subspan(i * kCellBytes, kCellBytes));
    }
    ASSERT_NE(expected, payload);
    ASSERT_OK_AND_ASSIGN(PayloadStore::Landing place, payloads_->Reserve(cells_));
    // Damaged on the way to the host, where it is put in order, or on the way back.
    const std::vector<std::byte> before = Contents(cells_);
    for (int copies = 1; copies <= 2; ++copies) {
      Land(payload, place.bytes);
      kernels::emulated::DamageCopies(*memory_->device, copies, kCellBytes);
      EXPECT_EQ(
          payloads_->Install(cells_, place, ChecksumOf(payload), std::string(order), std::nullopt)
              .code(),
          absl::StatusCode::kDataLoss);
      kernels::emulated::DamageCopies(*memory_->device, 0, 0);
      EXPECT_EQ(Contents(cells_), before);
    }
    Land(payload, place.bytes);
    EXPECT_OK(
        payloads_->Install(cells_, place, ChecksumOf(payload), std::string(order), std::nullopt));
    EXPECT_EQ(Contents(cells_), expected) << order;
  }
}

TEST_F(DevicePayloadsTest, HaveNoRoomBeyondTheirSlots) {
  ASSERT_OK_AND_ASSIGN(auto first, payloads_->Take(cells_));
  ASSERT_OK_AND_ASSIGN(auto second, payloads_->Take(cells_));
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_NE(first->bytes[0].data(), second->bytes[0].data());
  ASSERT_OK_AND_ASSIGN(auto none, payloads_->Take(cells_));
  EXPECT_FALSE(none.has_value());
  EXPECT_EQ(payloads_->slots_in_use(), 2);
  first.reset();
  ASSERT_OK_AND_ASSIGN(auto third, payloads_->Take(cells_));
  EXPECT_TRUE(third.has_value());
  // A hold may end after the store.
  payloads_.reset();
}

TEST_F(DevicePayloadsTest, RefuseWhatFitsNoSlotAndWhatKernelsCannotMove) {
  const PayloadCells large = {
      {.first_ordinal = 5, .ordinal_count = 4, .first_layer = 0, .layer_count = 3}, blocks_, 5};
  EXPECT_EQ(payloads_->Reserve(large).status().code(), absl::StatusCode::kInvalidArgument);
  for (const int64_t bytes : {int64_t{240}, int64_t{264}}) {
    auto arena = *kv::BlockArena::Create(
        {.num_layers = kLayers, .block_tokens = 16, .layer_block_bytes = bytes}, kBlocks);
    const absl::Status status = DevicePayloads::Create({}, memory_->blocks, *arena).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

}  // namespace
}  // namespace tandem::transfer
