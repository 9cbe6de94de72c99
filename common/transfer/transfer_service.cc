#include "common/transfer/transfer_service.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/bounded_queue.h"
#include "common/runtime/clock.h"
#include "common/runtime/polite_spin.h"
#include "common/runtime/thread.h"
#include "common/transfer/export_share.h"

namespace tandem::transfer {
namespace {

// The longest sleep, so that deadlines are checked when nothing arrives.
constexpr absl::Duration kTickEvery = absl::Milliseconds(20);

class TransferServiceImpl final : public TransferService {
 public:
  TransferServiceImpl(const TransferServiceOptions& options, std::unique_ptr<KvTransport> transport,
                      kv::BlockArena& arena, EventSink sink)
      : options_(options),
        transport_(std::move(transport)),
        address_(transport_->address()),
        commands_(static_cast<size_t>(options.command_queue_max)),
        endpoint_(KvTransferEndpoint::Create(options.kv_transfer, arena, *transport_)),
        sink_(std::move(sink)),
        thread_([this] { Run(); }) {}

  ~TransferServiceImpl() override {
    stopping_.store(true);
    transport_->Wake();
    thread_.join();
    // The endpoint goes first: it uses the transport to its end, and ignores the completions that
    // the transport's end brings. The transport writes into the arena until it is destroyed.
    endpoint_.reset();
    transport_.reset();
  }

  absl::Status Submit(TransferCommand command) override {
    if (auto* finish = std::get_if<FinishExport>(&command)) finish->computed_at = RealClock().Now();
    if (!commands_.TryPush(std::move(command))) {
      return absl::ResourceExhaustedError(absl::StrCat("transfer: the queue holds its ",
                                                       commands_.capacity(),
                                                       " commands, submit this one again later"));
    }
    // A wake-up is a system call; the thread needs it only when it sleeps or is about to.
    if (sleeping_.load()) transport_->Wake();
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }

  int64_t backlog() const override { return static_cast<int64_t>(commands_.size()); }
  TransferCounters counters() const override {
    absl::MutexLock lock(&mutex_);
    return counters_;
  }

 private:
  void Run() {
    absl::Time idle_since = RealClock().Now();
    while (!stopping_.load()) {
      const absl::Time now = RealClock().Now();
      const absl::Duration before = ThreadProcessorTime();
      if (Step(now, before)) {
        // The step may have taken longer than a spin: what it did was not waiting.
        idle_since = RealClock().Now();
        worked_ += ThreadProcessorTime() - before;
        continue;
      }
      if (now - idle_since < options_.spin) continue;
      if (endpoint_->ExpectsMore() && now - idle_since < options_.spin_in_transfer &&
          spin_.Yield()) {
        continue;
      }
      // Announce the sleep, then look once more: a command pushed before the announcement was seen
      // is found here, a later one wakes.
      sleeping_.store(true);
      if (commands_.size() == 0 && !stopping_.load()) transport_->Wait(kTickEvery);
      sleeping_.store(false);
    }
  }

  // `before`: the thread's processor time until now.
  bool Step(absl::Time now, absl::Duration before) {
    bool moved = false;
    for (const TransferCommand& command : commands_.PopAll(absl::ZeroDuration())) {
      endpoint_->Handle(command, now);
      moved = true;
    }
    // Checksums of what was pushed may have taken a while.
    moved = endpoint_->Tick(moved ? RealClock().Now() : now) || moved;
    moved = transport_->Progress() || moved;
    for (TransferEvent& event : endpoint_->TakeEvents()) {
      if (auto* done = std::get_if<ExportDone>(&event))
        done->processor_time =
            shares_.Take(done->bytes_sent, MovedBytes(), worked_ + ThreadProcessorTime() - before);
      sink_(std::move(event));
      moved = true;
    }
    const KvTransport::Refusals refusals = transport_->refusals();
    const int64_t refused = refusals.connections + refusals.messages;
    if (moved || counters_stale_ || refused != std::exchange(refused_, refused)) {
      absl::MutexLock lock(&mutex_);
      counters_ = endpoint_->counters();
      counters_.connections_refused = refusals.connections;
      counters_.messages_dropped = refusals.messages;
      counters_stale_ = moved;
    }
    return moved;
  }

  int64_t MovedBytes() const {
    const TransferCounters counters = endpoint_->counters();
    return counters.bytes_sent + counters.bytes_received;
  }

  const TransferServiceOptions options_;
  std::unique_ptr<KvTransport> transport_;
  const std::string address_;
  BoundedQueue<TransferCommand> commands_;
  std::unique_ptr<KvTransferEndpoint> endpoint_;
  EventSink sink_;
  bool counters_stale_ = true;
  ExportShare shares_;
  absl::Duration worked_;  // processor time of the steps in which something moved
  int64_t refused_ = 0;    // as last published
  mutable absl::Mutex mutex_;
  TransferCounters counters_ ABSL_GUARDED_BY(mutex_);
  PoliteSpin spin_;  // the thread's
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last: it uses everything above
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransferService>> TransferService::Create(
    const TransferServiceOptions& options, std::unique_ptr<KvTransport> transport,
    kv::BlockArena& arena, EventSink sink) {
  if (options.command_queue_max <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("command_queue_max is ", options.command_queue_max, ", expected > 0"));
  }
  if (options.kv_transfer.frame_bytes_min <= 0 ||
      options.kv_transfer.frame_bytes_max < options.kv_transfer.frame_bytes_min) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame sizes are ", options.kv_transfer.frame_bytes_min, " to ",
                     options.kv_transfer.frame_bytes_max, " bytes, expected 0 < min <= max"));
  }
  return std::make_unique<TransferServiceImpl>(options, std::move(transport), arena,
                                               std::move(sink));
}

}  // namespace tandem::transfer
