#include "cli/bench/kv_bench.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/kv_bench_side.h"
#include "cli/bench/machine_roofs.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

constexpr uint64_t kSender = 1, kReceiver = 2;  // incarnations
constexpr int kRoundTrips = 100;

double ProcessSeconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A round as the sending process asks the receiving one for it. num_blocks 0 ends the receiver.
struct Round {
  uint64_t number = 0;
  int32_t num_blocks = 0;
};
// The answers: leases are open (first), all is installed (second, with the processor time).
struct Answer {
  bool ok = false;
  double cpu_seconds = 0;
};

template <typename T>
bool Put(int fd, const T& value) {
  return ::send(fd, &value, sizeof value, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof value);
}
template <typename T>
bool Take(int fd, T& value) {
  return ::recv(fd, &value, sizeof value, MSG_WAITALL) == static_cast<ssize_t>(sizeof value);
}

// The receiving process, from fork to exit. It does nothing before the sender's first byte.
[[noreturn]] void Receive(const KvBenchPlan& plan, int fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  char go = 0;
  if (!Take(fd, go)) ::_exit(0);
  auto side = KvBenchSide::Create(plan, kReceiver);
  if (!side.ok()) ::_exit(1);
  const std::string& address = (*side)->address();
  bool ok = Put(fd, address.size()) && ::send(fd, address.data(), address.size(), MSG_NOSIGNAL) ==
                                           static_cast<ssize_t>(address.size());
  for (Round round; ok && Take(fd, round) && round.num_blocks > 0;) {
    ok = Put(fd, Answer{.ok = (*side)->Open(round.number, round.num_blocks).ok()});
    const double before = ProcessSeconds();
    const bool installed = (*side)->AwaitInstalled().ok();
    ok = ok && Put(fd, Answer{.ok = installed, .cpu_seconds = ProcessSeconds() - before});
  }
  // Without destructors: the parent's objects are this process's, too.
  ::_exit(0);
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
    bench->sources_ = ShuffledBlocks(plan.num_blocks, kSender);
    bench->targets_ = ShuffledBlocks(plan.num_blocks, kReceiver);
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
  Sender(std::unique_ptr<KvBenchSide> side, int fd, std::string receiver)
      : side_(std::move(side)), fd_(fd), receiver_(std::move(receiver)) {}

  struct Times {
    double seconds = 0, send_cpu = 0, receive_cpu = 0;
  };
  absl::StatusOr<Times> Run(int32_t num_blocks) {
    const Round round = {.number = ++rounds_, .num_blocks = num_blocks};
    Answer open, installed;
    if (!Put(fd_, round) || !Take(fd_, open) || !open.ok) {
      return absl::UnavailableError("the receiving process failed to open its leases");
    }
    Times times;
    const double before = ProcessSeconds();
    absl::Status sent;
    times.seconds = engine::SecondsOf(
        [&] { sent = side_->Send(round.number, num_blocks, receiver_, kReceiver); });
    RETURN_IF_ERROR(sent);
    times.send_cpu = ProcessSeconds() - before;
    if (!Take(fd_, installed) || !installed.ok) {
      return absl::UnavailableError("the receiving process failed");
    }
    times.receive_cpu = installed.cpu_seconds;
    return times;
  }

 private:
  const std::unique_ptr<KvBenchSide> side_;
  const int fd_;
  const std::string receiver_;
  uint64_t rounds_ = 0;
};

absl::StatusOr<KvBenchResult> Measure(const KvBenchPlan& plan, const KvBenchOptions& options,
                                      int fd) {
  size_t address_bytes = 0;
  if (!Take(fd, address_bytes))
    return absl::UnavailableError("the receiving process did not start");
  std::string address(address_bytes, '\0');
  if (::recv(fd, address.data(), address.size(), MSG_WAITALL) !=
      static_cast<ssize_t>(address.size())) {
    return absl::UnavailableError("the receiving process ended");
  }
  ASSIGN_OR_RETURN(auto side, KvBenchSide::Create(plan, kSender));
  ASSIGN_OR_RETURN(const auto copies, CopyBench::Create(plan));
  Sender sender(std::move(side), fd, std::move(address));
  std::vector<double> copy_seconds, seconds, send_cpu, receive_cpu, trips;
  RETURN_IF_ERROR(sender.Run(plan.num_blocks).status());
  for (int32_t round = 0; round < options.rounds; ++round) {
    copy_seconds.push_back(copies->Seconds());
    ASSIGN_OR_RETURN(const Sender::Times times, sender.Run(plan.num_blocks));
    seconds.push_back(times.seconds);
    send_cpu.push_back(times.send_cpu);
    receive_cpu.push_back(times.receive_cpu);
  }
  for (int i = 0; i < kRoundTrips; ++i) {
    ASSIGN_OR_RETURN(const Sender::Times times, sender.Run(1));
    trips.push_back(times.seconds);
  }
  const double bytes = static_cast<double>(plan.block_bytes) * plan.num_blocks;
  return KvBenchResult{.transport = plan.transport,
                       .block_bytes = plan.block_bytes,
                       .memcpy_gbps = bytes / 1e9 / Median(copy_seconds),
                       .gbps = bytes / 1e9 / Median(seconds),
                       .send_cpu_ms_per_mb = 1e9 * Median(send_cpu) / bytes,
                       .receive_cpu_ms_per_mb = 1e9 * Median(receive_cpu) / bytes,
                       .round_trip_us = 1e6 * Median(trips)};
}

// A receiving process that waits for its measurement. All are forked before the first one: what a
// process has drawn at random by then, its children would draw too.
class Receiver {
 public:
  static absl::StatusOr<std::unique_ptr<Receiver>> Fork(const KvBenchPlan& plan) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return absl::ResourceExhaustedError(absl::StrCat("socketpair: ", std::strerror(errno)));
    }
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      Receive(plan, ends[1]);
    }
    ::close(ends[1]);
    std::unique_ptr<Receiver> receiver(new Receiver(plan, ends[0], child));
    if (child > 0) return receiver;
    return absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(errno)));
  }
  ~Receiver() {
    ::close(fd_);
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  absl::StatusOr<KvBenchResult> Run(const KvBenchOptions& options) const {
    if (!Put(fd_, char{1})) return absl::UnavailableError("the receiving process ended");
    return Measure(plan_, options, fd_);
  }

 private:
  Receiver(const KvBenchPlan& plan, int fd, pid_t child) : plan_(plan), fd_(fd), child_(child) {}
  const KvBenchPlan plan_;
  const int fd_;
  const pid_t child_;
};

}  // namespace

absl::StatusOr<std::vector<KvBenchResult>> BenchKv(const KvBenchOptions& options) {
  std::vector<std::unique_ptr<Receiver>> receivers;
  for (const int64_t block_bytes : options.block_bytes) {
    for (const std::string& transport : options.transports) {
      const KvBenchPlan plan = {.transport = transport,
                                .block_bytes = block_bytes,
                                .num_blocks = static_cast<int32_t>(options.bytes / block_bytes),
                                .streams = options.streams};
      if (plan.num_blocks < 1) {
        return absl::InvalidArgumentError(absl::StrCat("blocks of ", block_bytes,
                                                       " bytes, expected at most the ",
                                                       options.bytes, " bytes of a round"));
      }
      ASSIGN_OR_RETURN(receivers.emplace_back(), Receiver::Fork(plan));
    }
  }
  std::vector<KvBenchResult> results;
  for (std::unique_ptr<Receiver>& receiver : receivers) {
    ASSIGN_OR_RETURN(results.emplace_back(), receiver->Run(options));
    receiver.reset();  // gives its memory back
  }
  return results;
}

std::string FormatTable(const std::vector<KvBenchResult>& results) {
  std::string text = absl::StrFormat("%-9s %12s %9s %7s %13s %17s %20s %14s\n", "TRANSPORT",
                                     "BLOCK BYTES", "GB/S", "RATIO", "MEMCPY GB/S",
                                     "SEND CPU MS/MB", "RECEIVE CPU MS/MB", "ROUND TRIP US");
  for (const KvBenchResult& result : results) {
    absl::StrAppendFormat(
        &text, "%-9s %12d %9.2f %6.0f%% %13.2f %17.3f %20.3f %14.1f\n", result.transport,
        result.block_bytes, result.gbps, 100 * result.gbps / result.memcpy_gbps, result.memcpy_gbps,
        result.send_cpu_ms_per_mb, result.receive_cpu_ms_per_mb, result.round_trip_us);
  }
  return text;
}

std::string FormatJson(const std::vector<KvBenchResult>& results) {
  KvBenchResult shm, tcp;
  for (const KvBenchResult& result : results) {
    KvBenchResult& best = result.transport == "tcp" ? tcp : shm;
    if (result.block_bytes > best.block_bytes ||
        (result.block_bytes == best.block_bytes && result.gbps > best.gbps)) {
      best = result;
    }
  }
  std::string text = absl::StrFormat(
      "{\"memcpy_gbps\": %.6g, \"shm_gbps\": %.6g, \"tcp_gbps\": %.6g, \"round_trip_us\": %.6g, "
      "\"results\": [",
      std::max(shm.memcpy_gbps, tcp.memcpy_gbps), shm.gbps, tcp.gbps,
      shm.gbps > 0 ? shm.round_trip_us : tcp.round_trip_us);
  for (size_t i = 0; i < results.size(); ++i) {
    const KvBenchResult& result = results[i];
    absl::StrAppendFormat(
        &text,
        "%s\n  {\"transport\": \"%s\", \"block_bytes\": %d, \"gbps\": %.6g, \"memcpy_gbps\": %.6g, "
        "\"send_cpu_ms_per_mb\": %.6g, \"receive_cpu_ms_per_mb\": %.6g, \"round_trip_us\": %.6g}",
        i == 0 ? "" : ",", result.transport, result.block_bytes, result.gbps, result.memcpy_gbps,
        result.send_cpu_ms_per_mb, result.receive_cpu_ms_per_mb, result.round_trip_us);
  }
  return text + "\n]}\n";
}

}  // namespace tandem::cli
