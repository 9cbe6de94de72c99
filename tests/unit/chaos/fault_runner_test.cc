// Goal: a drained process that ends with code 0 is started again; one that ignores SIGTERM, or ends
// with another code, is a broken promise; one whose time is not over when the run ends is none. The
// disk stays full until the last fault that fills it ends. A fault of its memory explains the end
// of a process for a few seconds, and a use of a bad address never.
#include "cli/chaos/fault_runner.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <cstdlib>
#include <utility>

#include "tests/unit/chaos/fake_cluster.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

// Namespaces of which only the disk is used.
class FakeDisk final : public Namespaces {
 public:
  std::string AddressOf(int) const override { return ""; }
  int DescriptorOf(int) const override { return -1; }
  PacketSwitch& packets() override { std::abort(); }
  absl::Status FillDisk() override {
    full = true;
    return absl::OkStatus();
  }
  void EmptyDisk() override { full = false; }

  bool full = false;
};

TEST(FaultRunnerDisk, StaysFullUntilTheLastFaultThatFillsItEnds) {
  FakeCluster cluster;
  FakeDisk disk;
  const auto fault = [](int at_ms, int lasts_ms) {
    return ChaosFault{.at = absl::Milliseconds(at_ms),
                      .lasts = absl::Milliseconds(lasts_ms),
                      .kind = ChaosFaultKind::kDisk};
  };
  FaultRunner runner({fault(1000, 500), fault(1200, 1000), fault(3000, 500)}, ChaosTopology(),
                     cluster, &disk);
  const std::pair<int, bool> expected[] = {{1000, true}, {1200, true},  {1500, true},
                                           {2100, true}, {2200, false}, {2900, false},
                                           {3000, true}, {3500, false}};
  for (const auto& [at_ms, full] : expected) {
    runner.Tick(absl::Milliseconds(at_ms));
    EXPECT_EQ(disk.full, full) << at_ms << " ms";
  }
  EXPECT_TRUE(runner.over());
}

TEST(FaultRunnerDisk, IsEmptyWhenTheRunEnds) {
  FakeCluster cluster;
  FakeDisk disk;
  const ChaosFault fault{
      .at = absl::Seconds(1), .lasts = absl::Seconds(9), .kind = ChaosFaultKind::kDisk};
  FaultRunner runner({fault, fault}, ChaosTopology(), cluster, &disk);
  runner.Tick(absl::Seconds(1));
  EXPECT_TRUE(disk.full);
  runner.EndAll(absl::Seconds(2));
  EXPECT_FALSE(disk.full);
}

class FaultRunnerMemory : public ::testing::Test {
 protected:
  FaultRunnerMemory()
      : runner_({{.at = kAt, .lasts = kLasts, .kind = ChaosFaultKind::kMemory, .victim = kVictim}},
                ChaosTopology(), cluster_, /*namespaces=*/nullptr) {
    runner_.Tick(kAt);
    EXPECT_THAT(cluster_.limits, ElementsAre(std::pair(kVictim, true)));
  }

  const absl::Duration ends_ = kAt + kLasts, explained_until_ = kAt + kLasts + kChaosMemoryGrace;
  FakeCluster cluster_;
  FaultRunner runner_;
};

TEST_F(FaultRunnerMemory, ExplainsADeathWhileItLastsAndStartsTheProcessAtItsEnd) {
  cluster_.End(kVictim, "signal 6");
  runner_.Tick(ends_ - absl::Milliseconds(10));
  EXPECT_THAT(cluster_.started, IsEmpty());
  runner_.Tick(ends_);
  EXPECT_THAT(cluster_.started, ElementsAre(kVictim));
  EXPECT_THAT(runner_.crashes(), IsEmpty());
}

TEST_F(FaultRunnerMemory, ExplainsADeathSoonAfterIt) {
  runner_.Tick(ends_);
  EXPECT_THAT(cluster_.limits, ElementsAre(std::pair(kVictim, true), std::pair(kVictim, false)));
  cluster_.End(kVictim, "exit code 1");
  runner_.Tick(explained_until_);
  EXPECT_THAT(runner_.crashes(), IsEmpty());
  EXPECT_THAT(cluster_.started, ElementsAre(kVictim));
}

TEST_F(FaultRunnerMemory, ExplainsNoLaterDeath) {
  runner_.Tick(ends_);
  cluster_.End(kVictim, "signal 6");
  runner_.Tick(explained_until_ + absl::Milliseconds(10));
  EXPECT_THAT(runner_.crashes(), ElementsAre(HasSubstr("decode-1 ended with signal 6")));
  EXPECT_THAT(cluster_.started, ElementsAre(kVictim));
}

TEST_F(FaultRunnerMemory, ExplainsNoDeathOfAnotherProcess) {
  cluster_.End(kVictim + 1, "signal 6");
  runner_.Tick(ends_);
  EXPECT_THAT(runner_.crashes(), ElementsAre(HasSubstr("decode-2 ended with signal 6")));
}

TEST_F(FaultRunnerMemory, ExplainsNoUseOfABadAddress) {
  cluster_.End(kVictim, "signal 11");
  runner_.Tick(kAt + absl::Milliseconds(10));
  EXPECT_THAT(runner_.crashes(), ElementsAre(HasSubstr("decode-1 ended with signal 11")));
  EXPECT_THAT(cluster_.started, IsEmpty()) << "the fault's end starts it";
  runner_.Tick(ends_);
  EXPECT_THAT(cluster_.started, ElementsAre(kVictim));
}

}  // namespace
}  // namespace tandem::cli
