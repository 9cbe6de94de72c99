// Goal: while requests stream, the wall clock of every process of a cluster steps by hours,
// forwards and then back beyond where it was. Running and later requests finish with the tokens of
// a cluster whose clock did not step, none of them is tried again, and no node is taken for lost.
// What a load generator measures meanwhile is the time that passed.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/testing/program_run.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"
#include "tests/testing/test_folder.h"

namespace tandem::testing {
namespace {

constexpr int kClients = 3, kTokens = 700, kForwardAt = 100, kBackAt = 200;
constexpr int64_t kHour = 3600;

// The step of the clock of all processes that are started while this lives.
class SteppedClock {
 public:
  SteppedClock() : path_(::testing::TempDir() + "/stepped_clock_XXXXXX") {
    const int file = mkstemp(path_.data());
    EXPECT_EQ(ftruncate(file, sizeof(int64_t)), 0);
    void* mapped = mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    EXPECT_NE(mapped, MAP_FAILED);
    seconds_ = static_cast<std::atomic<int64_t>*>(mapped);
    setenv("TANDEM_STEPPED_CLOCK", path_.c_str(), 1);
    setenv("LD_PRELOAD", TANDEM_STEPPED_CLOCK_LIBRARY, 1);
  }
  ~SteppedClock() {
    unsetenv("LD_PRELOAD");
    unsetenv("TANDEM_STEPPED_CLOCK");
    munmap(seconds_, sizeof(int64_t));
    unlink(path_.c_str());
  }
  void Set(int64_t seconds) { seconds_->store(seconds); }

 private:
  std::string path_;
  std::atomic<int64_t>* seconds_ = nullptr;  // shared with the processes
};

v1::GenerateRequest Request(int number) {
  v1::GenerateRequest request;
  for (int i = 0; i < 100; ++i) request.mutable_tokens()->add_ids(1 + (i * 3 + number * 17) % 200);
  request.mutable_stop()->set_max_tokens(kTokens);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_return_token_ids(true);
  request.mutable_sampling()->set_seed(7 + number);
  return request;
}

class WallClockSteps : public ::testing::Test {
 protected:
  void Start() {
    auto router =
        RunningProgram::Start({"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0",
                               "--fleet=127.0.0.1:0", "--http=", "--heartbeat-interval=100ms",
                               "--node-lost-after=1s", "--local-prefill-tokens=0"});
    ASSERT_OK(router.status());
    programs_.push_back(*std::move(router));
    const std::string grpc = programs_[0]->AwaitField("router started", "grpc");
    ASSERT_FALSE(grpc.empty()) << programs_[0]->log();
    client_ = cli::Client::Create(grpc);
    for (const auto& [kind, id] :
         {std::pair("prefill", "p0"), {"decode", "d0"}, {"decode", "d1"}}) {
      auto node = RunningProgram::Start(
          {absl::StrCat("tandem-", kind, "-node"), "--engine=hash", "--hash-step-time=4ms",
           absl::StrCat("--id=", id), "--kv-blocks=256",
           "--routers=" + programs_[0]->AwaitField("router started", "fleet")});
      ASSERT_OK(node.status());
      programs_.push_back(*std::move(node));
      ASSERT_FALSE(programs_.back()->AwaitLine("joined router").empty()) << programs_.back()->log();
    }
  }
  // The requests, at the same time. on_token(n): the first one's n-th token has come.
  template <typename OnToken>
  std::vector<Answer> AskTogether(OnToken on_token) {
    std::vector<Answer> answers(kClients);
    std::vector<std::thread> clients;
    for (int i = 1; i < kClients; ++i)
      clients.emplace_back([&, i] { answers[i] = Collect(*client_, Request(i)); });
    int tokens = 0;
    answers[0].status = client_->Generate(Request(0), [&](const v1::GenerateResponse& part) {
      if (part.has_finished()) answers[0].finished = part.finished();
      for (const v1::GeneratedToken& token : part.delta().tokens()) {
        answers[0].tokens.push_back(token.token_id());
        on_token(++tokens);
      }
      return true;
    });
    for (std::thread& client : clients) client.join();
    return answers;
  }
  static void ExpectSame(const std::vector<Answer>& answers, const std::vector<Answer>& expected) {
    for (int i = 0; i < kClients; ++i) {
      EXPECT_OK(answers[i].status) << "request " << i;
      EXPECT_EQ(answers[i].tokens, expected[i].tokens) << "request " << i;
      EXPECT_EQ(answers[i].finished.route().attempts(), 1) << "request " << i;
    }
  }
  // The hours between the time of the router's last line and now.
  double HoursOfLastLine() {
    const std::string log = programs_[0]->log();
    const size_t begin = log.rfind('\n', log.size() - 2) + 1;
    absl::Time time;
    std::string why;
    EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, log.substr(begin, log.find(' ', begin) - begin),
                                &time, &why))
        << why << ": " << log.substr(begin);
    return absl::ToDoubleHours(time - absl::Now());
  }

  SteppedClock clock_;
  std::vector<std::unique_ptr<RunningProgram>> programs_;  // the router first
  std::unique_ptr<cli::Client> client_;
};

TEST_F(WallClockSteps, ChangeNoTokenAndLoseNoNode) {
#ifdef TANDEM_SANITIZED
  GTEST_SKIP() << "a sanitizer's library must be loaded first";
#endif
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<Answer> expected = AskTogether([](int) {});
  for (const Answer& answer : expected) ASSERT_EQ(answer.tokens.size(), size_t{kTokens});
  ExpectSame(AskTogether([&](int token) {
               if (token == kForwardAt) clock_.Set(5 * kHour);
               if (token == kBackAt) clock_.Set(-7 * kHour);
             }),
             expected);
  // Later ones, on the clock that has stepped back.
  ExpectSame(AskTogether([](int) {}), expected);
  const auto status = client_->GetStatus(absl::Seconds(10));
  ASSERT_OK(status.status());
  ASSERT_EQ(status->nodes_size(), 3);
  for (const v1::NodeStatus& node : status->nodes())
    EXPECT_EQ(node.state(), "ready") << node.node_id();
  for (const auto& program : programs_) EXPECT_TRUE(program->running()) << program->log();
  // The clock did step: the router says so in its log.
  programs_[0]->Signal(SIGTERM);
  EXPECT_EQ(programs_[0]->AwaitEnd(), "exit code 0");
  EXPECT_NEAR(HoursOfLastLine(), -7, 0.5) << programs_[0]->log();
}

// `tandem up` gives what runs its time by another clock than the wall's.
TEST_F(WallClockSteps, CutNoAnswerOffThatADrainWaitsFor) {
#ifdef TANDEM_SANITIZED
  GTEST_SKIP() << "a sanitizer's library must be loaded first";
#endif
  auto started = RunningProgram::Start({"tandem", "up", "--engine=hash", "--prefill=0",
                                        "--decode=1", "--hash-step-time=4ms", "--kv-blocks=256",
                                        "--grpc=127.0.0.1:0", "--http="});
  ASSERT_OK(started.status());
  RunningProgram& up = **started;
  const std::string ready = up.AwaitLine("; gRPC on ");
  ASSERT_FALSE(ready.empty()) << up.log();
  const size_t address = ready.find("127.0.0.1:");
  client_ = cli::Client::Create(ready.substr(address, ready.find(';', address) - address));
  bool stepped = false;
  const Answer answer = Collect(*client_, Request(0), [&](const Answer& so_far) {
    if (stepped || so_far.tokens.size() < size_t{kForwardAt}) return;
    stepped = true;
    up.Signal(SIGTERM);
    EXPECT_FALSE(up.AwaitLine("tandem up: draining").empty());
    clock_.Set(5 * kHour);
  });
  EXPECT_OK(answer.status);
  EXPECT_EQ(answer.tokens.size(), size_t{kTokens});
  EXPECT_EQ(up.AwaitEnd(), "exit code 0") << up.log();
}

// Requests go on when the clock has stepped back by an hour: latencies are differences of times
// that were taken before and after the step.
TEST_F(WallClockSteps, ChangeNoLatencyThatALoadGeneratorMeasures) {
#ifdef TANDEM_SANITIZED
  GTEST_SKIP() << "a sanitizer's library must be loaded first";
#endif
  constexpr int kRequests = 60, kStepAt = 4;
  ASSERT_OK_AND_ASSIGN(const auto cluster,
                       TestCluster::Start({"--engine=hash", "--prefill=0", "--decode=1",
                                           "--hash-step-time=4ms", "--kv-blocks=256"}));
  const TestFolder folder("wall-clock-steps");
  for (const std::string& target :
       {"http://" + cluster->http_address(), "grpc://" + cluster->address()}) {
    SCOPED_TRACE(target);
    clock_.Set(0);
    const auto finished = [&] {
      const auto status = cluster->client().GetStatus(absl::Seconds(10));
      EXPECT_OK(status.status());
      return status.ok() ? status->router().requests_finished() : kRequests;
    };
    const int64_t before = finished();
    const std::string report = folder / "report.json";
    const absl::Time began = absl::Now();
    ASSERT_OK_AND_ASSIGN(
        const auto bench,
        RunningProgram::Start({"tandem", "bench", "serve", "--target=" + target, "--concurrency=1",
                               absl::StrCat("--requests=", kRequests), "--warmup=0",
                               "--prompt-tokens=20", "--output-tokens=10", "--json=" + report}));
    while (finished() - before < kStepAt && bench->running()) {
    }
    clock_.Set(-kHour);
    EXPECT_LT(finished() - before, kRequests) << "the clock stepped after the run";
    ASSERT_EQ(bench->AwaitEnd(), "exit code 0") << bench->log();
    const double ran_ms = absl::ToDoubleMilliseconds(absl::Now() - began);
    std::ifstream file(report);
    const auto summary = nlohmann::json::parse(file, nullptr, false)["summary"];
    EXPECT_EQ(summary["answered"], kRequests);
    EXPECT_GT(summary["ttft_ms"]["mean"], 0);
    EXPECT_GT(summary["e2e_ms"]["mean"], 9 * 4) << "nine gaps between ten tokens";
    EXPECT_LT(summary["e2e_ms"]["max"], ran_ms);
  }
}

}  // namespace
}  // namespace tandem::testing
