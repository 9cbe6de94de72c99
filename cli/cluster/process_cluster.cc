// Implements StartProcessCluster (cli/cluster/cluster.h): each node and router is a process.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "cli/cluster/child_process.h"
#include "cli/cluster/cluster.h"
#include "cli/cluster/loading_bars.h"
#include "cli/cluster/log_field.h"
#include "cli/cluster/restart_count.h"
#include "cli/terminal/terminal.h"
#include "common/base/status_macros.h"
#include "common/base/steady_flag.h"
#include "common/runtime/clock.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kRestartDelay = absl::Milliseconds(500);
// How often a drain looks whether a process has ended.
constexpr absl::Duration kEndedLook = absl::Milliseconds(10);
constexpr char kClearLine[] = "\r\033[K";

// Whether `up` prints brief lines. JSON is for programs, which want all of it.
bool IsBrief(const UpConfig& up) {
  if (up.common.log_format == "json") return false;
  return up.logs == "brief" || (up.logs == "auto" && isatty(STDERR_FILENO) != 0);
}

// What a process said when it started.
struct Announcement {
  bool started = false;
  std::string grpc, fleet, http, admin;  // of routers; empty where one has no such port
  std::string last_line;                 // explains a process that ended
  bool last_line_shown = false;          // to the user, already
};

class ProcessCluster final : public Cluster {
 public:
  ProcessCluster(const UpConfig& up, std::string binaries, const Processors& processors)
      : up_(up),
        brief_(IsBrief(up)),
        draws_bar_(brief_ && !up.quiet && isatty(STDERR_FILENO) != 0),
        binaries_(std::move(binaries)),
        processors_(processors) {}

  absl::Status Start() {
    for (int i = 0; i < up_.routers; ++i) {
      RETURN_IF_ERROR(
          Launch({absl::StrCat("router-", i), "tandem-router", ToFlags(PlanRouter(up_, i))}));
    }
    return absl::OkStatus();
  }

  std::string grpc_address() const override {
    absl::MutexLock lock(&mutex_);
    const auto found = announcements_.find("router-0");
    return found == announcements_.end() ? "" : found->second.grpc;
  }

  std::string grpc_addresses() const override { return AddressesOf(&Announcement::grpc); }
  std::string fleet_addresses() const override { return AddressesOf(&Announcement::fleet); }
  std::string http_addresses() const override { return AddressesOf(&Announcement::http); }
  std::string admin_addresses() const override { return AddressesOf(&Announcement::admin); }

  absl::Status Watch(absl::Time now) override {
    if (!nodes_started_ && RoutersStarted()) RETURN_IF_ERROR(StartNodes());
    for (Process& process : processes_) {
      if (process.child != nullptr) {
        const std::optional<std::string> ended = process.child->Ended();
        if (!ended.has_value()) continue;
        RETURN_IF_ERROR(OnEnded(process, *ended, now));
      } else if (now >= process.restart_at) {
        RETURN_IF_ERROR(Spawn(process, now));
      }
    }
    return absl::OkStatus();
  }

  bool Drain() override {
    // Routers first: they finish running requests, for which they need the nodes.
    const bool routers = End("tandem-router", up_.common.drain_timeout + absl::Seconds(5));
    const bool nodes = End("", absl::Seconds(15));
    return routers && nodes;
  }

 private:
  struct Process {
    std::string name;
    std::string program;
    std::vector<std::string> flags;
    std::unique_ptr<ChildProcess> child;
    RestartCount restarts;
    absl::Time restart_at;
  };

  // What the processes announced that have one, comma-separated.
  std::string AddressesOf(std::string Announcement::*address) const {
    absl::MutexLock lock(&mutex_);
    std::vector<std::string> addresses;
    for (const auto& [name, announcement] : announcements_) {
      if (!(announcement.*address).empty()) addresses.push_back(announcement.*address);
    }
    return absl::StrJoin(addresses, ", ");
  }

  absl::Status Launch(Process process) {
    RETURN_IF_ERROR(Spawn(process, RealClock().Now()));
    processes_.push_back(std::move(process));
    return absl::OkStatus();
  }

  absl::Status Spawn(Process& process, absl::Time now) {
    process.restarts.Started(now);
    ASSIGN_OR_RETURN(
        process.child,
        ChildProcess::Start(
            process.name, absl::StrCat(binaries_, "/", process.program), process.flags,
            [this, name = process.name](const std::string& line) { OnLine(name, line); }));
    return absl::OkStatus();
  }

  bool RoutersStarted() const {
    absl::MutexLock lock(&mutex_);
    int started = 0;
    for (const auto& [name, announcement] : announcements_) started += announcement.started ? 1 : 0;
    return started >= up_.routers;
  }

  absl::Status StartNodes() {
    nodes_started_ = true;
    std::vector<std::string> fleet;
    {
      absl::MutexLock lock(&mutex_);
      for (Process& process : processes_) {
        const Announcement& announcement = announcements_[process.name];
        fleet.push_back(announcement.fleet);
        // A router that is started again must be found where it was.
        process.flags.push_back(absl::StrCat("--fleet=", announcement.fleet));
        process.flags.push_back(absl::StrCat("--grpc=", announcement.grpc));
        if (!announcement.http.empty()) {
          process.flags.push_back(absl::StrCat("--http=", announcement.http));
        }
        if (!announcement.admin.empty()) {
          process.flags.push_back(absl::StrCat("--admin=", announcement.admin));
        }
      }
    }
    for (int i = 0; i < up_.prefill; ++i) RETURN_IF_ERROR(LaunchNode("prefill", i, fleet));
    for (int i = 0; i < up_.decode; ++i) RETURN_IF_ERROR(LaunchNode("decode", i, fleet));
    return absl::OkStatus();
  }

  absl::Status LaunchNode(const std::string& role, int index,
                          const std::vector<std::string>& fleet) {
    node::NodeConfig config = PlanNode(up_, role, index, processors_, fleet);
    config.load_progress = draws_bar_ ? "lines" : "off";
    return Launch(
        {absl::StrCat(role, "-", index), absl::StrCat("tandem-", role, "-node"), ToFlags(config)});
  }

  absl::Status OnEnded(Process& process, const std::string& how, absl::Time now) {
    process.child.reset();  // its reader has then seen every line
    std::string why;
    bool was_started = false;
    {
      absl::MutexLock lock(&mutex_);
      const Announcement& announcement = announcements_[process.name];
      why = announcement.last_line_shown ? "; its last line above says why"
                                         : absl::StrCat(": ", announcement.last_line);
      was_started = announcement.started;
      bars_.Remove(process.name);
      DrawBar();
    }
    if (!was_started || !process.restarts.Ended(now)) {
      return absl::UnavailableError(absl::StrCat(process.name, " ended with ", how, why));
    }
    process.restart_at = now + kRestartDelay;
    std::fprintf(stderr, "tandem up: %s ended with %s; starting it again\n", process.name.c_str(),
                 how.c_str());
    return absl::OkStatus();
  }

  void OnLine(const std::string& name, const std::string& line) {
    absl::MutexLock lock(&mutex_);
    const auto has = [&](const char* message) { return HasLogMessage(line, name, message); };
    if (draws_bar_ && has("loading weights")) return OnLoading(name, line);
    Announcement& announcement = announcements_[name];
    announcement.last_line = line;
    announcement.last_line_shown = false;
    if (has("router started")) {
      announcement.started = true;
      announcement.grpc = LogField(line, "grpc");
      announcement.fleet = LogField(line, "fleet");
      announcement.http = LogField(line, "http");
      if (announcement.http == "off") announcement.http.clear();
      announcement.admin = LogField(line, "admin");
      if (announcement.admin == "off") announcement.admin.clear();
    } else if (has("node started")) {
      announcement.started = true;
    }
    if (up_.quiet) return;
    const bool json = absl::StartsWith(line, "{");  // it names its process itself
    const std::string shown = json     ? line
                              : brief_ ? BriefLine(name, line)
                                       : absl::StrCat("[", name, "] ", line);
    if (shown.empty()) return;
    announcement.last_line_shown = true;
    std::fprintf(stderr, "%s%s\n", bar_shown_ ? kClearLine : "", shown.c_str());
    DrawBar();
  }

  void OnLoading(const std::string& name, const std::string& line)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int percent = 0;
    if (!absl::SimpleAtoi(LogField(line, "percent"), &percent)) return;
    bars_.Set(name, LogField(line, "stage"), percent);
    DrawBar();
  }

  void DrawBar() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!bar_shown_ && bars_.empty()) return;
    bar_shown_ = !bars_.empty();
    std::fprintf(stderr, "%s%s", kClearLine, bars_.Text(StatusLineColumns(STDERR_FILENO)).c_str());
    std::fflush(stderr);
  }

  // Ends the processes of one program ("" = all) with SIGTERM, after `timeout` with SIGKILL. The
  // system's clock may step meanwhile.
  bool End(absl::string_view program, absl::Duration timeout) {
    const absl::Time deadline = RealClock().Now() + timeout;
    for (Process& process : processes_) {
      if (process.child != nullptr && (program.empty() || process.program == program)) {
        process.child->Signal(SIGTERM);
      }
    }
    bool clean = true;
    for (Process& process : processes_) {
      if (process.child == nullptr || (!program.empty() && process.program != program)) continue;
      std::optional<std::string> ended;
      while (!(ended = process.child->Ended()).has_value() && RealClock().Now() < deadline)
        never_.Await(kEndedLook);
      clean = clean && ended == "exit code 0";
      process.child.reset();
    }
    return clean;
  }

  const UpConfig up_;
  const bool brief_;
  const bool draws_bar_;
  const std::string binaries_;
  const Processors processors_;
  bool nodes_started_ = false;
  mutable absl::Mutex mutex_;
  std::map<std::string, Announcement> announcements_ ABSL_GUARDED_BY(mutex_);
  LoadingBars bars_ ABSL_GUARDED_BY(mutex_);
  bool bar_shown_ ABSL_GUARDED_BY(mutex_) = false;
  SteadyFlag never_;
  // Last: until a child has ended, its lines come to the members above.
  std::vector<Process> processes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Cluster>> StartProcessCluster(const UpConfig& up,
                                                             const std::string& binaries,
                                                             const Processors& processors) {
  auto cluster = std::make_unique<ProcessCluster>(up, binaries, processors);
  RETURN_IF_ERROR(cluster->Start());
  return cluster;
}

}  // namespace tandem::cli
