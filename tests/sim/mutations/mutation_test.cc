// Goal: the checkers and the swarm notice when a protection is missing: each one that a test build
// can take out of the shipping machines is missed within a thousand schedules, or in a schedule of
// its own, and none is with all of them in place. A mutated machine may also end the process by its
// own checks, or crash: that counts.
#include "common/base/mutation.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <random>

#include "common/telemetry/log.h"
#include "sim/swarm.h"
#include "tests/testing/status_matchers.h"

namespace tandem {
namespace {

Mutation active_mutation = Mutation::kNone;

}  // namespace

Mutation& ActiveMutation() { return active_mutation; }

namespace sim {
namespace {

constexpr int64_t kSchedules = 1000;

struct Planted {
  Mutation mutation;
  const char* name;
};
void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.name; }

class MutationTest : public ::testing::TestWithParam<Planted> {};

// Runs `work` in a process of its own. `work` says what it noticed, and returns whether it came to
// its end. Returns what was noticed, or how the process ended otherwise; "" = it came to its end
// and noticed nothing.
std::string WhatChildNoticed(const std::function<bool(std::string& noticed)>& work) {
  int fds[2];
  EXPECT_EQ(::pipe(fds), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(STDERR_FILENO);
    std::string noticed;
    const bool done = work(noticed);
    [[maybe_unused]] const auto wrote = ::write(fds[1], noticed.data(), noticed.size());
    ::_exit(done ? 0 : 1);
  }
  ::close(fds[1]);
  std::string text(4096, '\0');
  const ssize_t got = ::read(fds[0], text.data(), text.size());
  text.resize(got > 0 ? got : 0);
  ::close(fds[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) return "a check of the machine's own";
  if (WIFSIGNALED(status)) return absl::StrCat("signal ", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return absl::StrCat("exit code ", WEXITSTATUS(status));
  return text;
}

// Runs schedules with the mutation; what ended them.
std::string WhatNoticed(Mutation mutation, uint64_t first_seed) {
  return WhatChildNoticed([&](std::string& noticed) {
    ActiveMutation() = mutation;
    const SwarmReport report = RunSwarm(
        {.first_seed = first_seed, .schedules = kSchedules, .threads = 1, .failures_max = 1});
    if (report.failures.empty()) return report.schedules == kSchedules;
    const auto& failure = report.failures.front();
    noticed = absl::StrCat(failure.violation.checker, " after ", report.schedules,
                           " schedules: ", failure.violation.what);
    return true;
  });
}

TEST_P(MutationTest, IsNoticedWithinAThousandSchedules) {
  SetLogLevel(LogLevel::kError);
  const uint64_t seed = (uint64_t{std::random_device()()} << 20) | 1;
  const std::string noticed = WhatNoticed(GetParam().mutation, seed);
  std::cout << GetParam().name << ", seeds from " << seed << ": " << noticed << "\n";
  EXPECT_FALSE(noticed.empty());
  EXPECT_THAT(noticed, ::testing::Not(::testing::StartsWith("exit code")));
}

INSTANTIATE_TEST_SUITE_P(
    Planted, MutationTest,
    ::testing::Values(Planted{Mutation::kEpochCheckDropped, "EpochCheckDropped"},
                      Planted{Mutation::kReleaseLost, "ReleaseLost"},
                      Planted{Mutation::kDoubleDelivery, "DoubleDelivery"},
                      Planted{Mutation::kSaltIgnored, "SaltIgnored"},
                      Planted{Mutation::kQuarantineSkipped, "QuarantineSkipped"},
                      Planted{Mutation::kLoanServedTooLong, "LoanServedTooLong"},
                      Planted{Mutation::kLoanKept, "LoanKept"},
                      Planted{Mutation::kIndebtedLends, "IndebtedLends"},
                      Planted{Mutation::kDebtsUnheard, "DebtsUnheard"},
                      Planted{Mutation::kLoanUsedUnverified, "LoanUsedUnverified"},
                      Planted{Mutation::kAbortIgnored, "AbortIgnored"},
                      Planted{Mutation::kChecksumIgnored, "ChecksumIgnored"},
                      Planted{Mutation::kExportUnpinnedEarly, "ExportUnpinnedEarly"},
                      Planted{Mutation::kRouterLossIgnored, "RouterLossIgnored"},
                      Planted{Mutation::kForgetSkipped, "ForgetSkipped"},
                      Planted{Mutation::kPartTokensIgnored, "PartTokensIgnored"},
                      Planted{Mutation::kUncomputedRowNamed, "UncomputedRowNamed"},
                      Planted{Mutation::kForkNeverUnpinned, "ForkNeverUnpinned"},
                      Planted{Mutation::kVerifiedOvercounted, "VerifiedOvercounted"},
                      Planted{Mutation::kAdoptedUnseen, "AdoptedUnseen"},
                      Planted{Mutation::kLegFoundByName, "LegFoundByName"},
                      Planted{Mutation::kMovedTokenRepeated, "MovedTokenRepeated"},
                      Planted{Mutation::kIndexUnbounded, "IndexUnbounded"},
                      Planted{Mutation::kRequestsUnbounded, "RequestsUnbounded"},
                      Planted{Mutation::kRejoinRefused, "RejoinRefused"},
                      Planted{Mutation::kHealthyAborted, "HealthyAborted"},
                      Planted{Mutation::kEndRepeated, "EndRepeated"}),
    [](const auto& planted) { return std::string(planted.param.name); });

TEST(Mutations, NoneIsMissedWithoutAny) {
  SetLogLevel(LogLevel::kError);
  const uint64_t seed = (uint64_t{std::random_device()()} << 20) | 1;
  EXPECT_EQ(WhatNoticed(Mutation::kNone, seed), "") << "seeds from " << seed;
}

// The first violation of one schedule with the mutation, by its checker; "" = there is none.
std::string WhoNoticed(Mutation mutation, const Schedule& schedule) {
  return WhatChildNoticed([&](std::string& noticed) {
    ActiveMutation() = mutation;
    const SimReport report = RunSchedule(schedule);
    if (!report.violations.empty()) noticed = report.violations.front().checker;
    return true;
  });
}

// Two decode nodes. One of them dies when all is served: the other could serve on its own.
TEST(Mutations, ANodeThatNeverJoinsAgainIsMissed) {
  SetLogLevel(LogLevel::kError);
  Schedule schedule;
  schedule.topology.decode_nodes = 2;
  schedule.requests = {{.at_us = 50'000, .own_tokens = 20, .own_seed = 3, .max_tokens = 5}};
  schedule.faults = {
      {.at_us = 900'000, .kind = FaultKind::kCrash, .target = 3, .lasts_us = 50'000}};
  EXPECT_EQ(WhoNoticed(Mutation::kNone, schedule), "");
  EXPECT_EQ(WhoNoticed(Mutation::kRejoinRefused, schedule), "quiescence");
}

// A decode node dies while another one, too, could go on with the answer. The client of an aborted
// answer asks again, and would have it in the end.
TEST(Mutations, AnAbortThatNoClientAskedForIsNoticed) {
  SetLogLevel(LogLevel::kError);
  Schedule schedule;
  schedule.topology.decode_nodes = 2;
  schedule.topology.step_us = 20'000;
  schedule.requests = {{.at_us = 50'000, .own_tokens = 20, .own_seed = 3, .max_tokens = 60}};
  schedule.faults = {
      {.at_us = 300'000, .kind = FaultKind::kCrash, .target = 3, .lasts_us = 50'000}};
  EXPECT_EQ(WhoNoticed(Mutation::kNone, schedule), "");
  EXPECT_EQ(WhoNoticed(Mutation::kHealthyAborted, schedule), "stream");
}

TEST(Mutations, AnEndThatFollowsARequestsLastEndIsNoticed) {
  SetLogLevel(LogLevel::kError);
  Schedule schedule;
  schedule.requests = {{.at_us = 50'000, .own_tokens = 20, .own_seed = 3, .max_tokens = 5}};
  EXPECT_EQ(WhoNoticed(Mutation::kNone, schedule), "");
  EXPECT_EQ(WhoNoticed(Mutation::kEndRepeated, schedule), "stream");
}

// A decode node drains while it generates. The other one gets the sequence's KV, and its client
// leaves before the first one's time is over. Few drawn schedules are like that.
TEST(Mutations, ADrainThatOnlyItsTimeEndsIsNoticed) {
  SetLogLevel(LogLevel::kError);
  Schedule schedule;
  schedule.topology.decode_nodes = 2;
  schedule.topology.step_us = 5'000;
  schedule.requests = {
      {.at_us = 50'000, .own_tokens = 20, .own_seed = 3, .max_tokens = 400, .cancel_us = 450'000}};
  std::string noticed;
  for (const int64_t node : {2, 3}) {  // one of them has the request
    schedule.faults = {
        {.at_us = 100'000, .kind = FaultKind::kDrain, .target = node, .lasts_us = 1'000}};
    EXPECT_EQ(WhoNoticed(Mutation::kNone, schedule), "");
    noticed += WhoNoticed(Mutation::kSentKept, schedule);
  }
  EXPECT_EQ(noticed, "drain");
}

TEST(Mutations, AChildThatDoesNotComeToItsEndIsNotOneThatNoticedNothing) {
  const auto noticed = [](bool done, int signal) {
    return WhatChildNoticed([=](std::string&) {
      if (signal != 0) ::raise(signal);
      return done;
    });
  };
  EXPECT_EQ(noticed(true, 0), "");
  EXPECT_NE(noticed(false, 0), "");
  for (const int signal : {SIGSEGV, SIGKILL, SIGABRT, SIGFPE})
    EXPECT_NE(noticed(true, signal), "") << "signal " << signal;
}

}  // namespace
}  // namespace sim
}  // namespace tandem
