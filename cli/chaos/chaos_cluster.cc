#include "cli/chaos/chaos_cluster.h"

#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cli/client/client.h"
#include "cli/cluster/child_process.h"
#include "cli/cluster/log_field.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kStatusTimeout = absl::Seconds(2);
constexpr absl::Duration kRoutersStart = absl::Seconds(30);
// Bytes that a memory-limited process may still map, beyond what it has mapped.
constexpr int64_t kSpareBytes = 64 << 10;

// Bytes of address space that a process has mapped; 0 when it is gone.
int64_t MappedBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  int64_t pages = 0;
  file >> pages;
  return file ? pages * 4096 : 0;
}

class ChaosClusterImpl final : public ChaosCluster {
 public:
  explicit ChaosClusterImpl(const Options& options) : options_(options) {
    topology_ = {options.up.routers, options.up.prefill, options.up.decode};
    processes_.resize(static_cast<size_t>(topology_.processes()));
  }
  // SIGKILL ends a stopped process, too. Declared last: log readers use the members above.
  ~ChaosClusterImpl() override { processes_.clear(); }

  absl::Status Init() {
    for (int i = 0; i < topology_.routers; ++i) {
      RETURN_IF_ERROR(Launch(i, "tandem-router", RouterFlags(i)));
    }
    RETURN_IF_ERROR(AwaitRouters());
    std::vector<std::string> fleet;
    for (int i = 0; i < topology_.routers; ++i) {
      absl::MutexLock lock(&mutex_);
      const Announcement& announcement = announcements_[i];
      fleet.push_back(announcement.fleet);
      // A restarted router must have its old address.
      Process& router = processes_[static_cast<size_t>(i)];
      router.flags.push_back(absl::StrCat("--fleet=", announcement.fleet));
      router.flags.push_back(absl::StrCat("--grpc=", announcement.grpc));
      routers_.push_back(announcement.grpc);
    }
    for (const std::string& address : routers_) clients_.push_back(Client::Create(address));
    for (int i = topology_.routers; i < topology_.processes(); ++i) {
      const std::string role(topology_.RoleOf(i));
      RETURN_IF_ERROR(Launch(i, absl::StrCat("tandem-", role, "-node"), NodeFlags(i, role, fleet)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Ready() override {
    for (const Ended& ended : TakeEnded()) {
      absl::MutexLock lock(&mutex_);
      return absl::UnavailableError(absl::StrCat(topology_.NameOf(ended.process), " ended with ",
                                                 ended.how, ": ",
                                                 announcements_[ended.process].last_line));
    }
    for (const auto& client : clients_) {
      const auto status = client->GetStatus(kStatusTimeout);
      if (!status.ok()) return false;
      int ready = 0;
      for (const v1::NodeStatus& node : status->nodes()) ready += node.state() == "ready" ? 1 : 0;
      if (ready < topology_.prefill + topology_.decode) return false;
    }
    return true;
  }

  std::vector<std::string> router_addresses() const override { return routers_; }
  pid_t pid(int process) const override {
    const auto& child = processes_[static_cast<size_t>(process)].child;
    return child == nullptr ? 0 : child->pid();
  }
  void Signal(int process, int signal) override {
    const auto& child = processes_[static_cast<size_t>(process)].child;
    if (child != nullptr) child->Signal(signal);
  }
  bool LimitMemory(int process, bool limited) override {
    const pid_t running = pid(process);
    const int64_t mapped = running == 0 ? 0 : MappedBytes(running);
    if (mapped == 0) return false;
    const rlim_t bytes = limited ? static_cast<rlim_t>(mapped + kSpareBytes) : RLIM_INFINITY;
    const rlimit limit = {bytes, RLIM_INFINITY};
    prlimit(running, RLIMIT_AS, &limit, nullptr);
    return true;
  }
  void Kill(int process) override { processes_[static_cast<size_t>(process)].child.reset(); }
  absl::Status StartAgain(int process) override { return Spawn(process); }

  std::vector<Ended> TakeEnded() override {
    std::vector<Ended> all;
    for (int i = 0; i < topology_.processes(); ++i) {
      auto& child = processes_[static_cast<size_t>(i)].child;
      if (child == nullptr) continue;
      if (const std::optional<std::string> how = child->Ended(); how.has_value()) {
        child.reset();
        all.push_back({i, *how});
      }
    }
    return all;
  }

  std::string Holdings() override {
    std::string held;
    for (size_t i = 0; i < clients_.size(); ++i) {
      const std::string router = topology_.NameOf(static_cast<int>(i));
      const auto status = clients_[i]->GetStatus(kStatusTimeout);
      absl::StrAppend(&held, status.ok() ? HoldingsOf(router, *status)
                                         : absl::StrCat(router, " does not answer; "));
    }
    return held;
  }

  std::vector<int64_t> OpenFiles() const override {
    std::vector<int64_t> counts;
    for (int i = 0; i < topology_.processes(); ++i) {
      std::error_code error;
      int64_t count = 0;
      const std::filesystem::directory_iterator end;
      for (std::filesystem::directory_iterator it(absl::StrCat("/proc/", pid(i), "/fd"), error);
           !error && it != end; it.increment(error))
        ++count;
      counts.push_back(pid(i) == 0 ? 0 : count);
    }
    return counts;
  }

 private:
  struct Process {
    std::string program;
    std::vector<std::string> flags;
    std::unique_ptr<ChildProcess> child;
  };
  struct Announcement {
    std::string grpc, fleet;  // of routers
    std::string last_line;
    std::ofstream log;
  };

  // In a namespace every port is free; on loopback the cluster takes free ones.
  std::vector<std::string> RouterFlags(int process) const {
    router::RouterConfig config = PlanRouter(options_.up, process);
    config.http.clear();
    config.grpc = config.fleet = "127.0.0.1:0";
    if (options_.namespaces != nullptr) {
      const std::string address = options_.namespaces->AddressOf(process + 1);
      config.grpc = absl::StrCat(address, ":50051");
      config.fleet = absl::StrCat(address, ":50052");
    }
    // Silent peers are given up soon, because faults last seconds.
    config.core.heartbeat_interval = absl::Milliseconds(250);
    config.core.node_lost_after = absl::Seconds(1);
    config.core.prefill_deadline = absl::Seconds(10);
    config.core.token_deadline = absl::Seconds(5);
    // A busy machine's delay is no fault of the cluster's, and no failure of a request.
    config.overload.delay = absl::ZeroDuration();
    config.common.drain_timeout = kChaosDrainTimeout;
    return ToFlags(config);
  }

  // Each prefill node shares a machine, and so memory, with a decode node while there are enough.
  std::vector<std::string> NodeFlags(int process, const std::string& role,
                                     const std::vector<std::string>& fleet) const {
    const int index = process - topology_.routers - (role == "decode" ? topology_.prefill : 0);
    node::NodeConfig config = PlanNode(options_.up, role, index, options_.processors, fleet);
    if (options_.namespaces != nullptr) {
      config.host = absl::StrCat("machine-", index);
      config.kv.lending_host = options_.namespaces->AddressOf(process + 1);
    }
    config.common.drain_timeout = kChaosDrainTimeout;
    return ToFlags(config);
  }

  absl::Status Launch(int process, std::string program, std::vector<std::string> flags) {
    Process& launched = processes_[static_cast<size_t>(process)];
    launched.program = std::move(program);
    launched.flags = std::move(flags);
    if (!options_.logs.empty()) {
      const std::string path = absl::StrCat(options_.logs, "/", topology_.NameOf(process), ".log");
      absl::MutexLock lock(&mutex_);
      std::ofstream& log = announcements_[process].log;
      log.open(path);
      if (!log) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
    }
    return Spawn(process);
  }

  absl::Status Spawn(int process) {
    Process& spawned = processes_[static_cast<size_t>(process)];
    const int network =
        options_.namespaces == nullptr ? -1 : options_.namespaces->DescriptorOf(process + 1);
    ASSIGN_OR_RETURN(
        spawned.child,
        ChildProcess::Start(
            topology_.NameOf(process), absl::StrCat(options_.binaries, "/", spawned.program),
            spawned.flags, [this, process](const std::string& line) { OnLine(process, line); },
            network));
    return absl::OkStatus();
  }

  void OnLine(int process, const std::string& line) {
    absl::MutexLock lock(&mutex_);
    Announcement& announcement = announcements_[process];
    announcement.last_line = line;
    if (announcement.log.is_open()) announcement.log << line << std::endl;
    if (!absl::StrContains(line, " router started ")) return;
    announcement.grpc = LogField(line, "grpc");
    announcement.fleet = LogField(line, "fleet");
  }

  absl::Status AwaitRouters() {
    const auto all_serve = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      for (int i = 0; i < topology_.routers; ++i) {
        const auto found = announcements_.find(i);
        if (found == announcements_.end() || found->second.grpc.empty()) return false;
      }
      return true;
    };
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&all_serve), kRoutersStart))
      return absl::OkStatus();
    return absl::DeadlineExceededError(
        absl::StrCat("routers do not serve within ", absl::FormatDuration(kRoutersStart),
                     "; router-0's last line: ", announcements_[0].last_line));
  }

  static std::string HoldingsOf(const std::string& router, const v1::GetStatusResponse& status) {
    std::string held;
    const auto note = [&](const std::string& who, absl::string_view what, int64_t count) {
      if (count != 0) absl::StrAppend(&held, router, " says ", who, " ", what, "=", count, "; ");
    };
    note("it", "requests_running", status.router().requests_running());
    note("it", "requests_queued", status.router().requests_queued());
    note("it", "diverged_tokens", status.router().diverged_tokens());
    for (const v1::NodeStatus& node : status.nodes()) {
      if (node.state() == "lost") {
        note(node.node_id(), "lost", 1);
        continue;
      }
      const v1::NodeLoad& load = node.load();
      note(node.node_id(), "leases", load.leases());
      note(node.node_id(), "exports", load.exports());
      note(node.node_id(), "sequences", load.sequences_running() + load.sequences_waiting());
      note(node.node_id(), "blocks_quarantined", load.blocks_quarantined());
      note(node.node_id(), "blocks_lent", load.blocks_lent());
      note(node.node_id(), "debts", load.debts_size());
      note(node.node_id(), "blocks beyond free and cached",
           load.blocks_total() - load.blocks_free() - load.blocks_cached());
    }
    return held;
  }

  const Options options_;
  ChaosTopology topology_;
  absl::Mutex mutex_;
  std::map<int, Announcement> announcements_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> routers_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Process> processes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChaosCluster>> ChaosCluster::Start(const Options& options) {
  auto cluster = std::make_unique<ChaosClusterImpl>(options);
  RETURN_IF_ERROR(cluster->Init());
  return cluster;
}

}  // namespace tandem::cli
