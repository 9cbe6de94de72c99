#include "cli/bench/kv_bench_side.h"

#include <cstring>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"
#include "common/runtime/random.h"
#include "common/transfer/mapped_transport.h"
#include "common/transfer/ucx_transport.h"

namespace tandem::cli {
namespace {

constexpr char kHost[] = "bench";
constexpr absl::Duration kRoundMax = absl::Seconds(60);

uint64_t LeaseOf(uint64_t round, int32_t stream) {
  return round << 16 | static_cast<uint64_t>(stream);
}

}  // namespace

std::vector<BlockId> ShuffledBlocks(int32_t num_blocks, uint64_t seed) {
  const std::unique_ptr<Random> random = NewSeededRandom(seed);
  std::vector<BlockId> blocks;
  for (int32_t i = 0; i < num_blocks; ++i) {
    blocks.push_back(BlockId(i));
    std::swap(blocks[random->Below(blocks.size())], blocks.back());
  }
  return blocks;
}

absl::StatusOr<std::unique_ptr<KvBenchSide>> KvBenchSide::Create(const KvBenchPlan& plan,
                                                                 uint64_t number) {
  std::unique_ptr<KvBenchSide> side(new KvBenchSide(plan));
  RETURN_IF_ERROR(side->Start(number));
  return side;
}

absl::Status KvBenchSide::Start(uint64_t number) {
  const bool mapped = plan_.transport == "mapped";
  ASSIGN_OR_RETURN(
      arena_,
      kv::BlockArena::Create(
          {.num_layers = 1, .block_tokens = 16, .layer_block_bytes = plan_.block_bytes},
          plan_.num_blocks, mapped ? kv::ArenaMemory::kShareable : kv::ArenaMemory::kPrivate));
  for (int32_t i = 0; i < plan_.num_blocks; ++i) {
    const absl::Span<std::byte> block = arena_->Block(0, BlockId(i));
    std::memset(block.data(), i + 1, block.size());
  }
  order_ = ShuffledBlocks(plan_.num_blocks, number);
  ASSIGN_OR_RETURN(
      std::unique_ptr<transfer::KvTransport> transport,
      transfer::NewUcxTransport(
          {.transports = mapped ? "shm" : plan_.transport, .host = kHost, .fleet_secret = ""}));
  if (mapped) transport = transfer::NewMappedTransport({}, *arena_, std::move(transport));
  transfer::TransferServiceOptions options;
  options.kv_transfer.incarnation = Incarnation(number);
  ASSIGN_OR_RETURN(service_,
                   transfer::TransferService::Create(
                       options, std::move(transport), *arena_,
                       [this](transfer::TransferEvent event) { events_.Push(std::move(event)); }));
  return absl::OkStatus();
}

std::vector<BlockId> KvBenchSide::BlocksOf(int32_t stream, int32_t num_blocks) const {
  const int32_t first = num_blocks * stream / plan_.streams;
  const int32_t end = num_blocks * (stream + 1) / plan_.streams;
  return {order_.begin() + first, order_.begin() + end};
}

absl::Status KvBenchSide::Open(uint64_t round, int32_t num_blocks) {
  const absl::Time now = RealClock().Now();
  int32_t opened = 0;
  for (int32_t stream = 0; stream < plan_.streams; ++stream) {
    const std::vector<BlockId> blocks = BlocksOf(stream, num_blocks);
    if (blocks.empty()) continue;
    RETURN_IF_ERROR(service_->Submit(transfer::OpenLease{.lease = LeaseId(LeaseOf(round, stream)),
                                                         .epoch = Epoch(1),
                                                         .first_ordinal = 0,
                                                         .blocks = blocks,
                                                         .deadline = now + kRoundMax}));
    ++opened;
  }
  while (service_->counters().leases_open != opened) {
    if (RealClock().Now() > now + kRoundMax) {
      return absl::DeadlineExceededError(
          "the receiver's leases did not open within a round's time");
    }
    std::this_thread::yield();
  }
  return absl::OkStatus();
}

template <typename Event>
absl::Status KvBenchSide::Await() {
  const std::optional<transfer::TransferEvent> event = events_.Pop(kRoundMax);
  if (event.has_value() && std::holds_alternative<Event>(*event)) return absl::OkStatus();
  if (event.has_value()) {
    if (const auto* failed = std::get_if<transfer::ExportFailed>(&*event)) return failed->status;
    if (const auto* failed = std::get_if<transfer::LeaseFailed>(&*event)) return failed->status;
  }
  return absl::DeadlineExceededError(
      absl::StrCat("over ", plan_.transport, ", with blocks of ", plan_.block_bytes,
                   " bytes: the round did not end within ", absl::FormatDuration(kRoundMax)));
}

absl::Status KvBenchSide::AwaitInstalled() {
  const int64_t open = service_->counters().leases_open;
  for (int64_t i = 0; i < open; ++i) RETURN_IF_ERROR(Await<transfer::LeaseInstalled>());
  while (service_->counters().leases_open != 0) std::this_thread::yield();
  return absl::OkStatus();
}

absl::Status KvBenchSide::Send(uint64_t round, int32_t num_blocks, const std::string& address,
                               uint64_t receiver) {
  int32_t sent = 0;
  for (int32_t stream = 0; stream < plan_.streams; ++stream) {
    const std::vector<BlockId> blocks = BlocksOf(stream, num_blocks);
    if (blocks.empty()) continue;
    const transfer::ExportId id(LeaseOf(round, stream));
    transfer::OpenExport open;
    open.export_id = id;
    open.peer = {NodeId("peer"), Incarnation(receiver), address, kHost};
    open.lease = LeaseId(LeaseOf(round, stream));
    open.epoch = Epoch(1);
    open.blocks = blocks;
    open.deadline = RealClock().Now() + kRoundMax;
    RETURN_IF_ERROR(service_->Submit(open));
    RETURN_IF_ERROR(
        service_->Submit(transfer::PushRange{.export_id = id,
                                             .first_ordinal = 0,
                                             .ordinal_count = static_cast<int32_t>(blocks.size()),
                                             .first_layer = 0,
                                             .layer_count = 1}));
    RETURN_IF_ERROR(service_->Submit(transfer::FinishExport{.export_id = id}));
    ++sent;
  }
  for (int32_t i = 0; i < sent; ++i) RETURN_IF_ERROR(Await<transfer::ExportDone>());
  return absl::OkStatus();
}

}  // namespace tandem::cli
