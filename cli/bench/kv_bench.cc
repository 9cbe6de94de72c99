#include "cli/bench/kv_bench.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/bench/bench_child.h"
#include "cli/bench/call_bench.h"
#include "cli/bench/kv_bench_side.h"
#include "cli/bench/machine_roofs.h"
#include "cli/bench/socket_bench.h"
#include "cli/bench/ucx_perftest.h"
#include "cli/report/statistics.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"

namespace tandem::cli {
namespace {

constexpr int kRoundTrips = 100;
// A prompt of 512 tokens: 32 blocks of 16.
constexpr int32_t kPacedBlocks = 32, kPacedLayers = 16;
constexpr int64_t kPacedBlockBytes = 16 << 10;
constexpr absl::Duration kPacedLayerTime = absl::Milliseconds(1);
constexpr int kPacedBefore = 5;  // unmeasured

double Median(std::vector<double> values) { return Describe(std::move(values)).p50; }

// The answers to a KvBenchRound: leases are open (first), all has ended (second).
struct Answer {
  bool ok = false;
  double cpu_seconds = 0;
  double wire_seconds = 0, hidden_seconds = 0, beyond_seconds = 0;  // of the first lease
};

bool PutText(int fd, const std::string& text) {
  return Put(fd, text.size()) &&
         ::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}
absl::StatusOr<std::string> TakeText(int fd) {
  size_t bytes = 0;
  if (!Take(fd, bytes)) return absl::UnavailableError("the receiving process did not start");
  std::string text(bytes, '\0');
  if (::recv(fd, text.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes)) return text;
  return absl::UnavailableError("the receiving process ended");
}

// The receiving process; with a plan for both directions it also sends.
absl::Status Receive(const KvBenchPlan& plan, int fd) {
  ASSIGN_OR_RETURN(const auto side, KvBenchSide::Create(plan, kKvBenchReceiver));
  if (!PutText(fd, side->address())) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string sender, TakeText(fd));
  for (KvBenchRound round; Take(fd, round);) {
    RETURN_IF_ERROR(side->Open(round));
    Put(fd, Answer{.ok = true});
    char go = 0;
    if (plan.both && !Take(fd, go)) break;
    Answer answer;
    const double before = ProcessSeconds();
    if (plan.both) RETURN_IF_ERROR(side->Send(round, sender, kKvBenchSender));
    ASSIGN_OR_RETURN(const KvBenchSide::Ends ends, side->AwaitEnds());
    answer.ok = true;
    answer.cpu_seconds = ProcessSeconds() - before;
    answer.wire_seconds = absl::ToDoubleSeconds(ends.leases[0].receive_time);
    answer.hidden_seconds = absl::ToDoubleSeconds(ends.leases[0].hidden_time);
    answer.beyond_seconds = absl::ToDoubleSeconds(ends.leases[0].beyond_time);
    Put(fd, answer);
  }
  return absl::OkStatus();
}

// Copies blocks between two private arenas, as a transfer does between two processes.
class CopyBench {
 public:
  static absl::StatusOr<std::unique_ptr<CopyBench>> Create(const KvBenchPlan& plan) {
    auto bench = std::unique_ptr<CopyBench>(new CopyBench);
    const kv::BlockLayout layout = {
        .num_layers = 1, .block_tokens = 16, .layer_block_bytes = plan.block_bytes};
    ASSIGN_OR_RETURN(bench->from_, kv::BlockArena::Create(layout, plan.num_blocks));
    ASSIGN_OR_RETURN(bench->to_, kv::BlockArena::Create(layout, plan.num_blocks));
    for (int32_t i = 0; i < plan.num_blocks; ++i) {
      std::memset(bench->from_->Block(0, BlockId(i)).data(), i + 1,
                  static_cast<size_t>(plan.block_bytes));
    }
    bench->sources_ = ShuffledBlocks(plan.num_blocks, kKvBenchSender);
    bench->targets_ = ShuffledBlocks(plan.num_blocks, kKvBenchReceiver);
    bench->Seconds();  // touches the targets
    return bench;
  }
  double Seconds() {
    return engine::SecondsOf([&] {
      for (size_t i = 0; i < sources_.size(); ++i) {
        const absl::Span<std::byte> block = from_->Block(0, sources_[i]);
        std::memcpy(to_->Block(0, targets_[i]).data(), block.data(), block.size());
      }
    });
  }

 private:
  std::unique_ptr<kv::BlockArena> from_, to_;
  std::vector<BlockId> sources_, targets_;
};

// The sending process's view of one measurement.
class Sender {
 public:
  // Starts the receiving process, and this one's side.
  static absl::StatusOr<std::unique_ptr<Sender>> Create(const KvBenchPlan& plan,
                                                        const BenchChild& child) {
    RETURN_IF_ERROR(child.Start());
    ASSIGN_OR_RETURN(std::string receiver, TakeText(child.fd()));
    ASSIGN_OR_RETURN(auto side, KvBenchSide::Create(plan, kKvBenchSender));
    if (!PutText(child.fd(), side->address())) {
      return absl::UnavailableError("the receiving process ended");
    }
    return std::unique_ptr<Sender>(
        new Sender(plan, std::move(side), child.fd(), std::move(receiver)));
  }

  struct Times {
    double seconds = 0, send_cpu = 0, fairness = 1;
    Answer receiver;
  };
  absl::StatusOr<Times> Run(int32_t num_blocks, absl::Duration layer_time = absl::ZeroDuration()) {
    const KvBenchRound round = {
        .number = ++rounds_, .num_blocks = num_blocks, .layer_time = layer_time};
    Answer open;
    if (plan_.both) RETURN_IF_ERROR(side_->Open(round));
    if (!Put(fd_, round) || !Take(fd_, open) || !open.ok) {
      return absl::UnavailableError("the receiving process failed to open its leases");
    }
    Times times;
    const double before = ProcessSeconds();
    const absl::Time began = RealClock().Now();
    if (plan_.both) Put(fd_, char{1});
    RETURN_IF_ERROR(side_->Send(round, receiver_, kKvBenchReceiver));
    ASSIGN_OR_RETURN(const KvBenchSide::Ends ends, side_->AwaitEnds());
    times.seconds = absl::ToDoubleSeconds(RealClock().Now() - began);
    times.send_cpu = ProcessSeconds() - before;
    times.fairness = absl::FDivDuration(ends.exports.front() - began, ends.exports.back() - began);
    if (!Take(fd_, times.receiver) || !times.receiver.ok) {
      return absl::UnavailableError("the receiving process failed");
    }
    return times;
  }

 private:
  Sender(const KvBenchPlan& plan, std::unique_ptr<KvBenchSide> side, int fd, std::string receiver)
      : plan_(plan), side_(std::move(side)), fd_(fd), receiver_(std::move(receiver)) {}

  const KvBenchPlan plan_;
  const std::unique_ptr<KvBenchSide> side_;
  const int fd_;
  const std::string receiver_;
  uint64_t rounds_ = 0;
};

// What rounds of one plan took.
struct Rounds {
  std::vector<double> copies, seconds, send_cpu, receive_cpu, fairness, trips;
};

KvBenchResult Summarize(const KvBenchPlan& plan, const Rounds& rounds) {
  const double bytes = static_cast<double>(plan.block_bytes) * plan.num_blocks;
  const double moved = bytes * (plan.both ? 2 : 1);
  return KvBenchResult{.transport = plan.transport,
                       .block_bytes = plan.block_bytes,
                       .streams = plan.streams,
                       .both = plan.both,
                       .memcpy_gbps = bytes / 1e9 / Median(rounds.copies),
                       .gbps = moved / 1e9 / Median(rounds.seconds),
                       .send_cpu_ms_per_mb = 1e9 * Median(rounds.send_cpu) / moved,
                       .receive_cpu_ms_per_mb = 1e9 * Median(rounds.receive_cpu) / moved,
                       .push_to_ack_us = rounds.trips.empty() ? 0 : 1e6 * Median(rounds.trips),
                       .fairness = Median(rounds.fairness)};
}

// One plan's processes, forked before the first measurement.
class Measurement {
 public:
  static absl::StatusOr<std::unique_ptr<Measurement>> Fork(const KvBenchPlan& plan) {
    auto measurement = std::unique_ptr<Measurement>(new Measurement(plan));
    if (plan.transport == "socket") {
      ASSIGN_OR_RETURN(measurement->socket_, SocketBench::Fork(plan));
    } else {
      ASSIGN_OR_RETURN(measurement->child_, BenchChild::Fork([&](int fd) {
                         // The sender finds the socket closed, and says so.
                         Receive(plan, fd).IgnoreError();
                       }));
    }
    return measurement;
  }

  absl::StatusOr<KvBenchResult> Run(int32_t num_rounds) const {
    ASSIGN_OR_RETURN(const auto copies, CopyBench::Create(plan_));
    if (socket_ != nullptr) return RunSocket(num_rounds, *copies);
    ASSIGN_OR_RETURN(const auto sender, Sender::Create(plan_, *child_));
    Rounds rounds;
    RETURN_IF_ERROR(sender->Run(plan_.num_blocks).status());
    for (int32_t round = 0; round < num_rounds; ++round) {
      rounds.copies.push_back(copies->Seconds());
      ASSIGN_OR_RETURN(const Sender::Times times, sender->Run(plan_.num_blocks));
      rounds.seconds.push_back(times.seconds);
      rounds.send_cpu.push_back(times.send_cpu);
      rounds.receive_cpu.push_back(times.receiver.cpu_seconds);
      rounds.fairness.push_back(times.fairness);
    }
    for (int i = 0; i < kRoundTrips; ++i) {
      ASSIGN_OR_RETURN(const Sender::Times times, sender->Run(1));
      rounds.trips.push_back(times.seconds);
    }
    return Summarize(plan_, rounds);
  }

  absl::StatusOr<KvPaced> RunPaced(int32_t count) const {
    ASSIGN_OR_RETURN(const auto sender, Sender::Create(plan_, *child_));
    std::vector<double> wire, beyond;
    double wire_all = 0, hidden_all = 0;
    for (int32_t i = -kPacedBefore; i < count; ++i) {
      ASSIGN_OR_RETURN(const Sender::Times times, sender->Run(plan_.num_blocks, kPacedLayerTime));
      if (i < 0) continue;
      wire.push_back(times.receiver.wire_seconds);
      beyond.push_back(times.receiver.beyond_seconds);
      wire_all += times.receiver.wire_seconds;
      hidden_all += times.receiver.hidden_seconds;
    }
    return KvPaced{.transport = plan_.transport,
                   .wire_ms = 1e3 * Median(wire),
                   .hidden_part = wire_all > 0 ? hidden_all / wire_all : 0,
                   .beyond_ms_p50 = 1e3 * Median(beyond),
                   .beyond_ms_p99 = 1e3 * Describe(beyond).p99};
  }

 private:
  explicit Measurement(const KvBenchPlan& plan) : plan_(plan) {}

  absl::StatusOr<KvBenchResult> RunSocket(int32_t num_rounds, CopyBench& copies) const {
    RETURN_IF_ERROR(socket_->Start());
    RETURN_IF_ERROR(socket_->Round().status());
    Rounds rounds;
    for (int32_t round = 0; round < num_rounds; ++round) {
      rounds.copies.push_back(copies.Seconds());
      ASSIGN_OR_RETURN(const SocketBench::Times times, socket_->Round());
      rounds.seconds.push_back(times.seconds);
      rounds.send_cpu.push_back(times.send_cpu);
      rounds.receive_cpu.push_back(times.receive_cpu);
      rounds.fairness.push_back(1);
    }
    return Summarize(plan_, rounds);
  }

  const KvBenchPlan plan_;
  std::unique_ptr<BenchChild> child_;
  std::unique_ptr<SocketBench> socket_;
};

absl::StatusOr<std::vector<KvBenchPlan>> Plans(const KvBenchOptions& options) {
  std::vector<KvBenchPlan> plans;
  for (const int64_t block_bytes : options.block_bytes) {
    const auto num_blocks = static_cast<int32_t>(options.bytes / block_bytes);
    if (num_blocks < 1) {
      return absl::InvalidArgumentError(absl::StrCat("blocks of ", block_bytes,
                                                     " bytes, expected at most the ", options.bytes,
                                                     " bytes of a round"));
    }
    for (const std::string& transport : options.transports) {
      for (const bool both : options.both_directions) {
        for (const int32_t streams : options.streams) {
          if (transport == "socket" && (both || streams != options.streams[0])) continue;
          plans.push_back({.transport = transport,
                           .block_bytes = block_bytes,
                           .num_blocks = num_blocks,
                           .streams = transport == "socket" ? 1 : streams,
                           .both = both});
        }
      }
    }
  }
  return plans;
}

std::vector<KvBenchPlan> PacedPlans(const KvBenchOptions& options) {
  std::vector<KvBenchPlan> plans;
  for (const std::string& transport : options.transports) {
    if (transport == "socket" || options.paced <= 0) continue;
    plans.push_back({.transport = transport,
                     .block_bytes = kPacedBlockBytes,
                     .num_layers = kPacedLayers,
                     .num_blocks = kPacedBlocks});
  }
  return plans;
}

absl::StatusOr<std::vector<std::unique_ptr<Measurement>>> ForkAll(
    const std::vector<KvBenchPlan>& plans) {
  std::vector<std::unique_ptr<Measurement>> measurements;
  for (const KvBenchPlan& plan : plans) {
    ASSIGN_OR_RETURN(measurements.emplace_back(), Measurement::Fork(plan));
  }
  return measurements;
}

void RunUcxPerftest(const KvBenchOptions& options, KvBenchReport& report) {
  const int64_t bytes = *std::max_element(options.block_bytes.begin(), options.block_bytes.end());
  for (const auto& [test, gbps] : {std::pair("ucp_am_bw", &report.ucx_am_gbps),
                                   std::pair("ucp_put_bw", &report.ucx_put_gbps)}) {
    const absl::StatusOr<double> measured = UcxPerftestGbps(test, bytes, options.environment);
    if (measured.ok()) {
      *gbps = *measured;
    } else {
      report.ucx_note = std::string(measured.status().message());
    }
  }
}

}  // namespace

absl::StatusOr<KvBenchReport> BenchKv(const KvBenchOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<KvBenchPlan> plans, Plans(options));
  ASSIGN_OR_RETURN(auto measurements, ForkAll(plans));
  ASSIGN_OR_RETURN(auto paced, ForkAll(PacedPlans(options)));
  ASSIGN_OR_RETURN(const auto spinning, CallBench::Fork(absl::Microseconds(50)));
  ASSIGN_OR_RETURN(const auto sleeping, CallBench::Fork(absl::ZeroDuration()));

  KvBenchReport report;
  ASSIGN_OR_RETURN(const absl::Duration spin_trip, spinning->RoundTrip());
  ASSIGN_OR_RETURN(const absl::Duration sleep_trip, sleeping->RoundTrip());
  report.round_trip_us = absl::ToDoubleMicroseconds(spin_trip);
  report.sleep_round_trip_us = absl::ToDoubleMicroseconds(sleep_trip);
  for (std::unique_ptr<Measurement>& measurement : measurements) {
    ASSIGN_OR_RETURN(report.results.emplace_back(), measurement->Run(options.rounds));
    measurement.reset();  // gives its memory back
  }
  for (std::unique_ptr<Measurement>& measurement : paced) {
    ASSIGN_OR_RETURN(report.paced.emplace_back(), measurement->RunPaced(options.paced));
    measurement.reset();
  }
  if (options.ucx_perftest) RunUcxPerftest(options, report);
  return report;
}

}  // namespace tandem::cli
