// The fixture of hostile-peer tests: a fleet with a secret, of real processes, under honest load,
// whose nodes' addresses an attacker has got hold of. After every test the load must have gone on
// with the oracle's tokens, and every process be as small as before and end with code 0.
// Thread safety: by the test's thread.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/rpc/server.h"
#include "tandem/v1/fleet.grpc.pb.h"
#include "tests/integration/hostile/wire.h"
#include "tests/testing/oracle_load.h"
#include "tests/testing/program_run.h"
#include "tests/testing/quiet_cluster.h"

namespace tandem::testing {

inline constexpr char kFleetSecret[] = "only the fleet knows this";

// Listens where nodes expect a router, records their registrations, and gives them commands.
class Eavesdropper final : public v1::Fleet::Service {
 public:
  v1::Registration Await(const std::string& node_id) {
    absl::MutexLock lock(&mutex_);
    const auto heard = [&] {
      mutex_.AssertReaderHeld();
      return heard_.count(node_id) > 0;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&heard), absl::Seconds(20))) << node_id;
    return heard_[node_id];
  }
  // How often a node answered a command.
  int obeyed() const { return obeyed_; }

 private:
  grpc::Status Join(grpc::ServerContext*,
                    grpc::ServerReaderWriter<v1::RouterMessage, v1::NodeMessage>* stream) override {
    stream->SendInitialMetadata();  // nodes wait for a challenge, even for none
    for (v1::NodeMessage message; stream->Read(&message);) {
      for (const v1::NodeEvent& event : message.events()) {
        if (event.has_reserved() || event.has_refused() || event.has_leg_failed()) ++obeyed_;
      }
      if (!message.has_registration()) continue;
      v1::RouterMessage answer;
      answer.mutable_welcome()->set_router_id("eavesdropper");
      stream->Write(answer);
      answer.Clear();
      v1::StartDecode& planted = *answer.add_commands()->mutable_start_decode();
      planted.mutable_leg()->set_request_id("planted");
      planted.mutable_leg()->set_number(1);
      planted.mutable_leg()->set_attempt(1);
      planted.mutable_sequence()->add_prompt(1);
      planted.set_local_prefill_tokens_max(-1);
      planted.set_deadline_s(60);
      stream->Write(answer);
      absl::MutexLock lock(&mutex_);
      heard_[message.registration().node_id()] = message.registration();
    }
    return grpc::Status::OK;
  }

  std::atomic<int> obeyed_{0};
  absl::Mutex mutex_;
  std::map<std::string, v1::Registration> heard_ ABSL_GUARDED_BY(mutex_);
};

class HostileCluster : public ::testing::Test {
 protected:
  // What an attack may leave behind: gRPC keeps descriptors and buffers of threads it started.
  static constexpr int64_t kFilesMore = 16;
#if defined(TANDEM_SANITIZED)
  static constexpr int64_t kBytesMore = int64_t{1} << 30;  // freed memory is kept for a while
#else
  static constexpr int64_t kBytesMore = 96 << 20;
#endif

  struct Process {
    std::unique_ptr<RunningProgram> program;
    std::vector<Port> ports;
    int64_t files = 0, bytes = 0;  // before the attack
  };

  void SetUp() override {
    secret_file_ = absl::StrCat(::testing::TempDir(), "/tandem-hostile-", ::getpid());
    std::ofstream(secret_file_) << kFleetSecret << "\n";
    ASSERT_OK_AND_ASSIGN(ear_,
                         rpc::Server::Start("127.0.0.1:0", {&eavesdropper_}, rpc::kNodeLimits));
    // Attackers that hold the secret cost attempts. By predicted times, decode nodes would compute
    // most prompts, and little KV would move.
    Start("router", {"tandem-router", "--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0",
                     "--heartbeat-interval=100ms", "--attempts=50", "--placement=affinity"});
    RunningProgram& router = *processes_["router"].program;
    const std::string grpc = router.AwaitField("router started", "grpc");
    fleet_ = router.AwaitField("router started", "fleet");
    ASSERT_FALSE(grpc.empty()) << router.log();
    client_ = cli::Client::Create(grpc);
    StartNode("prefill", "prefill-0");
    StartNode("decode", "decode-0");
    StartNode("decode", "decode-1");
    load_.Start({client_.get()}, 3);
    load_.AwaitAnswers(10);
    for (auto& [name, process] : processes_) {
      process.ports = ListeningPorts(process.program->pid());
      process.files = OpenFiles(process.program->pid());
      process.bytes = ResidentBytes(process.program->pid());
      ASSERT_FALSE(process.ports.empty()) << name;
    }
  }

  void TearDown() override {
    if (!HasFatalFailure()) load_.AwaitAnswers(20);
    load_.Stop();
    EXPECT_OK(AwaitQuiet(*client_, absl::Seconds(30)));
    for (const auto& [name, process] : processes_) ExpectAsBefore(name, process);
    // Nodes while their router lives, so that they need not wait for it.
    for (auto& [name, process] : processes_) {
      if (name != "router") End(name, process);
    }
    End("router", processes_["router"]);
    ear_->Shutdown(absl::ZeroDuration());
    ::unlink(secret_file_.c_str());
  }

  // Further flags of all nodes.
  virtual std::vector<std::string> NodeFlags() const { return {}; }
  // Drains soon: the last node has no peer to offer its blocks to.
  void StartNode(const std::string& role, const std::string& id) {
    std::vector<std::string> words = {absl::StrCat("tandem-", role, "-node"),
                                      "--id=" + id,
                                      "--kv-blocks=1024",
                                      "--transport=tcp",
                                      "--drain-timeout=2s",
                                      absl::StrCat("--routers=", fleet_, ",", ear_->address())};
    for (std::string& flag : NodeFlags()) words.push_back(std::move(flag));
    Start(id, std::move(words));
    RunningProgram& node = *processes_[id].program;
    EXPECT_FALSE(node.AwaitLine("router_id=router-0").empty()) << node.log();
  }
  pid_t pid(const std::string& name) { return processes_[name].program->pid(); }
  // Of the node's ports those that UCX opened.
  std::vector<Port> KvPorts(const std::string& node) {
    const std::string health = processes_[node].program->AwaitField("node started", "health");
    std::vector<Port> ports;
    for (const Port& port : processes_[node].ports) {
      if (!absl::EndsWith(health, absl::StrCat(":", port.port))) ports.push_back(port);
    }
    return ports;
  }
  // Waits until each process has no more descriptors than before.
  void AwaitFilesAsBefore(absl::Duration timeout) {
    const absl::Time give_up = absl::Now() + timeout;
    for (const auto& [name, process] : processes_) {
      while (OpenFiles(process.program->pid()) > process.files + kFilesMore &&
             absl::Now() < give_up) {
        load_.AwaitAnswers(1);
      }
      EXPECT_LE(OpenFiles(process.program->pid()), process.files + kFilesMore) << name;
    }
  }
  // A node's counter, once it is at least `goal`.
  int64_t AwaitCounter(const std::string& node, int64_t goal,
                       const std::function<int64_t(const v1::NodeCounters&)>& counter) {
    int64_t value = -1;
    EXPECT_OK(AwaitStatus(*client_, absl::Seconds(20), [&](const v1::GetStatusResponse& status) {
      for (const v1::NodeStatus& one : status.nodes()) {
        if (one.node_id() == node) value = counter(one.counters());
      }
      return value >= goal ? "" : absl::StrCat(node, " counts ", value, " of ", goal);
    }));
    return value;
  }
  int64_t StreamsRefused() {
    const auto status = client_->GetStatus(absl::Seconds(10));
    return status.ok() ? status->router().fleet_streams_refused() : -1;
  }

  Eavesdropper eavesdropper_;
  std::unique_ptr<rpc::Server> ear_;
  std::string secret_file_, fleet_;
  std::unique_ptr<cli::Client> client_;
  std::map<std::string, Process> processes_;
  OracleLoad load_;

 private:
  void Start(const std::string& name, std::vector<std::string> words) {
    words.insert(words.begin() + 1, {"--engine=hash", "--fleet-secret-file=" + secret_file_});
    auto program = RunningProgram::Start(words);
    ASSERT_OK(program.status());
    processes_[name].program = *std::move(program);
  }
  void ExpectAsBefore(const std::string& name, const Process& process) {
    ASSERT_TRUE(process.program->running()) << name << "\n" << process.program->log();
    EXPECT_LE(OpenFiles(process.program->pid()), process.files + kFilesMore) << name;
    const int64_t bytes = ResidentBytes(process.program->pid());
    EXPECT_LE(bytes, process.bytes + kBytesMore) << name;
    std::printf("%s: %ld descriptors (%ld before), %ld MiB (%ld before)\n", name.c_str(),
                static_cast<long>(OpenFiles(process.program->pid())),
                static_cast<long>(process.files), static_cast<long>(bytes >> 20),
                static_cast<long>(process.bytes >> 20));
  }
  void End(const std::string& name, Process& process) {
    process.program->Signal(SIGTERM);
    EXPECT_EQ(process.program->AwaitEnd(absl::Seconds(40)).value_or("goes on"), "exit code 0")
        << name << "\n"
        << process.program->log();
  }
};

}  // namespace tandem::testing
