// Goal: the plane without bytes ends leases and exports as kv_transfer.h says, at the time that
// rates and latency give, also when ends share a wire, leave, cancel or come too late.
#include "sim/trace/timed_plane.h"

#include <gtest/gtest.h>

#include <variant>

#include "sim/trace/token_engine.h"

namespace tandem::sim {
namespace {

using transfer::CancelExport;
using transfer::CloseLease;
using transfer::EpochRaised;
using transfer::ExportDone;
using transfer::ExportFailed;
using transfer::ExportId;
using transfer::FinishExport;
using transfer::LeaseDrained;
using transfer::LeaseFailed;
using transfer::LeaseInstalled;
using transfer::OpenExport;
using transfer::OpenLease;
using transfer::PushRange;
using transfer::RaiseEpoch;
using transfer::TransferCommand;
using transfer::TransferEvent;

// A process with a plane, which notes the plane's events and when they came.
class Side final : public Process {
 public:
  Side(World& world, TimedNetwork& network, int id, std::string name)
      : Process(world, id, std::move(name), absl::ZeroDuration()), network_(network) {
    Start();
  }
  void Do(const TransferCommand& command) {
    plane_->Handle(command, Now());
    Take();
  }
  void Tick() {
    plane_->Tick(Now());
    Take();
  }
  const std::string& address() const { return plane_->address(); }
  // The times of events of one kind, in microseconds since the start.
  template <typename Event>
  std::vector<int64_t> Times() const {
    std::vector<int64_t> times;
    for (const auto& [at, event] : events_)
      if (std::holds_alternative<Event>(event)) times.push_back(at);
    return times;
  }
  template <typename Event>
  const Event& Last() const {
    for (auto it = events_.rbegin(); it != events_.rend(); ++it)
      if (const auto* event = std::get_if<Event>(&it->second)) return *event;
    std::abort();
  }
  const KvPlane& plane() const { return *plane_; }

 private:
  void OnStart() override {
    started_ = Now();
    engine_ = NewTokenEngine({.block_tokens = 10, .kv_bytes_per_token = 100});  // 1,000 a block
    plane_.emplace(network_, KvPlaneSite{.process = *this,
                                         .incarnation = Incarnation(life()),
                                         .engine = *engine_,
                                         .on_activity = [this] { Take(); }});
  }
  void OnCrash() override { plane_.reset(); }
  void Take() {
    for (TransferEvent& event : plane_->TakeEvents())
      events_.emplace_back(absl::ToInt64Microseconds(Now() - started_), std::move(event));
  }

  TimedNetwork& network_;
  absl::Time started_;
  std::unique_ptr<engine::Engine> engine_;
  std::optional<TimedPlane> plane_;
  std::vector<std::pair<int64_t, TransferEvent>> events_;
};

class TimedPlaneTest : public ::testing::Test {
 protected:
  void Pass(absl::Duration time) { world_.RunUntil(world_.now() + time); }
  OpenLease Lease(uint64_t id, uint32_t epoch = 1) {
    return {.lease = LeaseId(id),
            .epoch = Epoch(epoch),
            .blocks = {BlockId(0)},
            .deadline = world_.now() + absl::Seconds(1)};
  }
  OpenExport Export(uint64_t id, const Side& to, uint64_t lease, uint32_t epoch = 1) {
    return {.export_id = ExportId(id),
            .peer = {.transport_address = to.address()},
            .lease = LeaseId(lease),
            .epoch = Epoch(epoch),
            .deadline = world_.now() + absl::Seconds(1)};
  }
  static PushRange Push(uint64_t id, int32_t blocks) {
    return {.export_id = ExportId(id), .ordinal_count = blocks, .layer_count = 1};
  }
  static FinishExport Finish(uint64_t id) {
    FinishExport finish{.export_id = ExportId(id)};
    finish.first_token.set_token_id(42);
    return finish;
  }

  World world_{1};
  // A block takes 1 ms; a message 0.1 ms.
  TimedNetwork network_{{.bytes_per_second = 1e6, .latency = absl::Microseconds(100)}};
  Side a_{world_, network_, 0, "a"}, b_{world_, network_, 1, "b"}, c_{world_, network_, 2, "c"};
};

using Times = std::vector<int64_t>;

TEST_F(TimedPlaneTest, ATransferTakesItsBytesAndTheLatency) {
  b_.Do(Lease(1));
  a_.Do(Export(9, b_, 1));
  a_.Do(Push(9, 2));
  a_.Do(Finish(9));
  EXPECT_EQ(a_.plane().counters().exports_open, 1);
  Pass(absl::Seconds(1));
  EXPECT_EQ(b_.Times<LeaseInstalled>(), Times{2100});
  EXPECT_EQ(a_.Times<ExportDone>(), Times{2200});
  const auto& installed = b_.Last<LeaseInstalled>();
  EXPECT_EQ(installed.bytes_received, 2000);
  EXPECT_EQ(installed.receive_time, absl::Milliseconds(2));
  EXPECT_EQ(installed.first_token.token_id(), 42);
  Pass(absl::Seconds(10));
  a_.Tick();
  b_.Tick();
  EXPECT_EQ(b_.Times<LeaseFailed>(), Times{}) << "an installed lease has no deadline";
  EXPECT_EQ(a_.Times<ExportFailed>(), Times{});
}

TEST_F(TimedPlaneTest, RangesWaitForBothEnds) {
  // a to b, a to c: a's wire is shared. c to b: b's is.
  b_.Do(Lease(1));
  c_.Do(Lease(2));
  b_.Do(Lease(3));
  a_.Do(Export(1, b_, 1));
  a_.Do(Export(2, c_, 2));
  c_.Do(Export(3, b_, 3));
  a_.Do(Push(1, 1));
  a_.Do(Push(2, 1));
  c_.Do(Push(3, 1));
  for (const uint64_t id : {1, 2}) a_.Do(Finish(id));
  c_.Do(Finish(3));
  Pass(absl::Seconds(1));
  EXPECT_EQ(b_.Times<LeaseInstalled>(), (Times{1100, 2100}));
  EXPECT_EQ(c_.Times<LeaseInstalled>(), Times{2100});
}

TEST_F(TimedPlaneTest, ACancelledExportFailsTheReceiversEpoch) {
  b_.Do(Lease(1));
  a_.Do(Export(9, b_, 1));
  a_.Do(Push(9, 1));
  a_.Do(CancelExport{.export_id = ExportId(9), .reason = "aborted"});
  EXPECT_EQ(a_.Times<ExportFailed>(), Times{0});
  Pass(absl::Seconds(2));
  b_.Tick();
  EXPECT_EQ(b_.Times<LeaseFailed>(), Times{100}) << "once an epoch, also past its deadline";
  // Another sender takes over.
  b_.Do(RaiseEpoch{
      .lease = LeaseId(1), .epoch = Epoch(2), .deadline = world_.now() + absl::Seconds(1)});
  EXPECT_EQ(b_.Times<EpochRaised>().size(), 1);
  c_.Do(Export(5, b_, 1, /*epoch=*/2));
  c_.Do(Finish(5));
  Pass(absl::Seconds(1));
  EXPECT_EQ(b_.Times<LeaseInstalled>().size(), 1);
}

TEST_F(TimedPlaneTest, AnExportThatNobodyExpectsFails) {
  b_.Do(Lease(1, /*epoch=*/2));
  a_.Do(Export(1, b_, 1, /*epoch=*/1));  // of an older epoch
  a_.Do(Export(2, b_, 7));               // of no lease
  for (const uint64_t id : {1, 2}) a_.Do(Finish(id));
  Pass(absl::Milliseconds(500));
  EXPECT_EQ(a_.Times<ExportFailed>().size(), 2);
  EXPECT_EQ(b_.Times<LeaseInstalled>(), Times{});
  EXPECT_EQ(b_.Times<LeaseFailed>(), Times{}) << "an older epoch's failure is not this one's";
  b_.Do(CloseLease{.lease = LeaseId(1)});
  EXPECT_EQ(b_.Times<LeaseDrained>().size(), 1);
  EXPECT_EQ(b_.plane().counters().leases_open, 0);
}

TEST_F(TimedPlaneTest, DeadlinesAndDeadReceiversEndTransfers) {
  b_.Do(Lease(1));
  a_.Do(Export(1, b_, 1));
  Pass(absl::Seconds(2));
  a_.Tick();
  b_.Tick();
  EXPECT_EQ(b_.Times<LeaseFailed>().size(), 1);
  EXPECT_EQ(a_.Times<ExportFailed>().size(), 1);

  a_.Do(Export(2, b_, 1));
  b_.Crash();
  a_.Do(Push(2, 1));
  EXPECT_EQ(a_.Times<ExportFailed>().size(), 2);
  EXPECT_EQ(a_.Last<ExportFailed>().status.code(), absl::StatusCode::kUnavailable);
  Pass(absl::Seconds(2));
}

}  // namespace
}  // namespace tandem::sim
