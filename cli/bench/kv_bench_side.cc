#include "cli/bench/kv_bench_side.h"

#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "cli/bench/kv_bench_transport.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"
#include "common/runtime/random.h"

namespace tandem::cli {
namespace {

constexpr char kHost[] = "bench";
// Many exports are pushed in turns, a part of each at a time, as chunks of many prompts are. If
// each was pushed whole, the first would be a window ahead before the last was known.
constexpr int32_t kParts = 16;
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
  const bool sends = plan_.both || number == kKvBenchSender;
  // As in a cluster: the arena of a node that only receives may stay its own.
  const kv::ArenaMemory memory = !mapped ? kv::ArenaMemory::kPrivate
                                 : sends ? kv::ArenaMemory::kShareable
                                         : kv::ArenaMemory::kShareableIfHuge;
  const int32_t num_blocks = plan_.num_blocks * (plan_.both ? 2 : 1);
  ASSIGN_OR_RETURN(arena_, kv::BlockArena::Create({.num_layers = plan_.num_layers,
                                                   .block_tokens = 16,
                                                   .layer_block_bytes = plan_.block_bytes},
                                                  num_blocks, memory));
  for (int layer = 0; layer < plan_.num_layers; ++layer) {
    for (int32_t i = 0; i < num_blocks; ++i) {
      const absl::Span<std::byte> block = arena_->Block(layer, BlockId(i));
      std::memset(block.data(), i + 1, block.size());
    }
  }
  send_order_ = receive_order_ = ShuffledBlocks(plan_.num_blocks, number);
  if (plan_.both) {
    for (BlockId& block : receive_order_) block = BlockId(block.value() + plan_.num_blocks);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<transfer::KvTransport> transport,
                   NewKvBenchTransport(plan_.transport, *arena_));
  transfer::TransferServiceOptions options;
  options.kv_transfer.incarnation = Incarnation(number);
  ASSIGN_OR_RETURN(
      service_, transfer::TransferService::Create(
                    options, std::move(transport), *arena_, [this](transfer::TransferEvent event) {
                      events_.Push({std::move(event), RealClock().Now()});
                    }));
  return absl::OkStatus();
}

std::vector<BlockId> KvBenchSide::BlocksOf(const std::vector<BlockId>& order, int32_t stream,
                                           int32_t num_blocks) const {
  const auto at = [&](int32_t i) {
    return order.begin() + int64_t{num_blocks} * i / plan_.streams;
  };
  return {at(stream), at(stream + 1)};
}

absl::Status KvBenchSide::Open(const KvBenchRound& round) {
  const absl::Time now = RealClock().Now();
  for (int32_t stream = 0; stream < plan_.streams; ++stream) {
    const std::vector<BlockId> blocks = BlocksOf(receive_order_, stream, round.num_blocks);
    if (blocks.empty()) continue;
    RETURN_IF_ERROR(
        service_->Submit(transfer::OpenLease{.lease = LeaseId(LeaseOf(round.number, stream)),
                                             .epoch = Epoch(1),
                                             .first_ordinal = 0,
                                             .blocks = blocks,
                                             .deadline = now + kRoundMax}));
    ++leases_open_;
  }
  while (service_->counters().leases_open != static_cast<int64_t>(leases_open_)) {
    if (RealClock().Now() > now + kRoundMax) {
      return absl::DeadlineExceededError(
          "the receiver's leases did not open within a round's time");
    }
    std::this_thread::yield();
  }
  return absl::OkStatus();
}

absl::Status KvBenchSide::Send(const KvBenchRound& round, const std::string& address,
                               uint64_t receiver) {
  std::vector<transfer::OpenExport> opened;
  for (int32_t stream = 0; stream < plan_.streams; ++stream) {
    transfer::OpenExport open;
    open.blocks = BlocksOf(send_order_, stream, round.num_blocks);
    if (open.blocks.empty()) continue;
    open.export_id = transfer::ExportId(LeaseOf(round.number, stream));
    open.peer = {NodeId("peer"), Incarnation(receiver), address, kHost};
    open.lease = LeaseId(LeaseOf(round.number, stream));
    open.epoch = Epoch(1);
    open.deadline = RealClock().Now() + kRoundMax;
    RETURN_IF_ERROR(service_->Submit(open));
    ++exports_open_;
    opened.push_back(std::move(open));
  }
  absl::Time next = RealClock().Now();
  for (int32_t layer = 0; layer < plan_.num_layers; ++layer) {
    next += round.layer_time;
    if (round.layer_time > absl::ZeroDuration()) {
      absl::Notification().WaitForNotificationWithTimeout(next - RealClock().Now());
    }
    RETURN_IF_ERROR(PushLayer(opened, layer));
  }
  for (const transfer::OpenExport& open : opened) {
    RETURN_IF_ERROR(service_->Submit(transfer::FinishExport{.export_id = open.export_id}));
  }
  return absl::OkStatus();
}

absl::Status KvBenchSide::PushLayer(const std::vector<transfer::OpenExport>& exports,
                                    int32_t layer) {
  const int32_t parts = exports.size() > 1 ? kParts : 1;
  for (int32_t part = 0; part < parts; ++part) {
    for (const transfer::OpenExport& open : exports) {
      const auto blocks = static_cast<int32_t>(open.blocks.size());
      const int32_t first = blocks * part / parts, end = blocks * (part + 1) / parts;
      if (first == end) continue;
      RETURN_IF_ERROR(service_->Submit(transfer::PushRange{.export_id = open.export_id,
                                                           .first_ordinal = first,
                                                           .ordinal_count = end - first,
                                                           .first_layer = layer,
                                                           .layer_count = 1}));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<KvBenchSide::Ends> KvBenchSide::AwaitEnds() {
  Ends ends;
  while (ends.exports.size() < exports_open_ || ends.leases.size() < leases_open_) {
    std::optional<TimedEvent> next = events_.Pop(kRoundMax);
    if (!next.has_value()) {
      return absl::DeadlineExceededError(
          absl::StrCat("over ", plan_.transport, ", with blocks of ", plan_.block_bytes,
                       " bytes: the round did not end within ", absl::FormatDuration(kRoundMax)));
    }
    if (auto* installed = std::get_if<transfer::LeaseInstalled>(&next->event)) {
      ends.leases.push_back(std::move(*installed));
    } else if (std::holds_alternative<transfer::ExportDone>(next->event)) {
      ends.exports.push_back(next->at);
    } else if (const auto* sent = std::get_if<transfer::ExportFailed>(&next->event)) {
      return sent->status;
    } else if (const auto* received = std::get_if<transfer::LeaseFailed>(&next->event)) {
      return received->status;
    }
  }
  // Counters follow their events a moment later, and Open waits for them.
  while (service_->counters().leases_open != 0) std::this_thread::yield();
  exports_open_ = leases_open_ = 0;
  return ends;
}

}  // namespace tandem::cli
