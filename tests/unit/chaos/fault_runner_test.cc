// Goal: a drained process that ends with code 0 is started again; one that ignores SIGTERM, or ends
// with another code, is a broken promise; one whose time is not over when the run ends is none.
#include "cli/chaos/fault_runner.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <utility>

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Processes that ignore every signal but SIGKILL, and end when the test says so.
class FakeCluster final : public ChaosCluster {
 public:
  absl::StatusOr<bool> Ready() override { return true; }
  std::vector<std::string> router_addresses() const override { return {}; }
  pid_t pid(int process) const override { return down.count(process) > 0 ? 0 : 100 + process; }
  void Signal(int process, int signal) override { signals.emplace_back(process, signal); }
  void Kill(int process) override { down.insert(process); }
  absl::Status StartAgain(int process) override {
    down.erase(process);
    started.push_back(process);
    return absl::OkStatus();
  }
  std::vector<Ended> TakeEnded() override { return std::exchange(ended, {}); }
  std::string Holdings() override { return ""; }
  std::vector<int64_t> OpenFiles() const override { return {}; }

  void End(int process, const std::string& how) {
    down.insert(process);
    ended.push_back({process, how});
  }

  std::set<int> down;
  std::vector<std::pair<int, int>> signals;
  std::vector<int> started;
  std::vector<Ended> ended;
};

constexpr int kVictim = 5;  // decode-1
constexpr absl::Duration kAt = absl::Seconds(1), kLasts = absl::Milliseconds(2500);
const absl::Duration kOver = kAt + kLasts + kChaosDrainGrace;

class FaultRunnerDrain : public ::testing::Test {
 protected:
  FaultRunnerDrain()
      : runner_({{.at = kAt, .lasts = kLasts, .kind = ChaosFaultKind::kDrain, .victim = kVictim}},
                ChaosTopology(), cluster_, /*namespaces=*/nullptr) {
    runner_.Tick(kAt);
    EXPECT_THAT(cluster_.signals, ElementsAre(std::pair(kVictim, SIGTERM)));
  }

  FakeCluster cluster_;
  FaultRunner runner_;
};

TEST_F(FaultRunnerDrain, ThatEndsInTimeIsNoCrash) {
  cluster_.End(kVictim, "exit code 0");
  runner_.Tick(kOver - absl::Milliseconds(10));
  runner_.Tick(kOver);
  EXPECT_THAT(runner_.crashes(), IsEmpty());
  EXPECT_THAT(cluster_.started, ElementsAre(kVictim));
  EXPECT_TRUE(runner_.over());
}

TEST_F(FaultRunnerDrain, ThatHangsIsReportedKilledAndStartedAgain) {
  runner_.Tick(kOver - absl::Milliseconds(10));
  EXPECT_THAT(runner_.crashes(), IsEmpty());
  EXPECT_FALSE(runner_.over());
  runner_.Tick(kOver);
  EXPECT_THAT(runner_.crashes(),
              ElementsAre("decode-1 got SIGTERM at 1.0 s and did not end within 3.4 s"));
  EXPECT_THAT(cluster_.started, ElementsAre(kVictim));
  EXPECT_TRUE(runner_.over());
  runner_.EndAll(kOver + absl::Seconds(1));
  EXPECT_EQ(runner_.crashes().size(), 1u);
}

TEST_F(FaultRunnerDrain, ThatHangsIsReportedWhenTheRunEndsBeforeTheNextTick) {
  runner_.EndAll(kOver);
  EXPECT_THAT(runner_.crashes(), ElementsAre(HasSubstr("did not end")));
  EXPECT_THAT(cluster_.started, ElementsAre(kVictim));
}

TEST_F(FaultRunnerDrain, ThatHadNoTimeIsNoCrash) {
  runner_.EndAll(kOver - absl::Milliseconds(10));
  EXPECT_THAT(runner_.crashes(), IsEmpty());
  EXPECT_THAT(cluster_.started, ElementsAre(kVictim));
}

TEST_F(FaultRunnerDrain, ThatEndsWithAnotherCodeIsACrash) {
  cluster_.End(kVictim, "signal 11");
  runner_.EndAll(kOver);
  EXPECT_THAT(runner_.crashes(), ElementsAre(HasSubstr("decode-1 ended with signal 11")));
  EXPECT_THAT(cluster_.started, ElementsAre(kVictim));
}

}  // namespace
}  // namespace tandem::cli
