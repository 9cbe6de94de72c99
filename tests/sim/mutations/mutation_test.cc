// Goal: the checkers and the swarm notice when a protection is missing: each one that a test build
// can take out of the shipping machines is missed within a thousand schedules, and none is with all
// of them in place. A mutated machine may also end the process by its own checks: that counts.
#include "common/base/mutation.h"

#include <sys/wait.h>
#include <unistd.h>

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

// Runs schedules with the mutation in a process of its own; what ended it.
std::string WhatNoticed(Mutation mutation, uint64_t first_seed) {
  int fds[2];
  EXPECT_EQ(::pipe(fds), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(STDERR_FILENO);
    ActiveMutation() = mutation;
    const SwarmReport report = RunSwarm(
        {.first_seed = first_seed, .schedules = kSchedules, .threads = 1, .failures_max = 1});
    if (!report.failures.empty()) {
      const auto& failure = report.failures.front();
      const std::string text = absl::StrCat(failure.violation.checker, " after ", report.schedules,
                                            " schedules: ", failure.violation.what);
      [[maybe_unused]] const auto wrote = ::write(fds[1], text.data(), text.size());
    }
    ::_exit(0);
  }
  ::close(fds[1]);
  std::string text(4096, '\0');
  const ssize_t got = ::read(fds[0], text.data(), text.size());
  text.resize(got > 0 ? got : 0);
  ::close(fds[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) return "a check of the machine's own";
  return text;
}

TEST_P(MutationTest, IsNoticedWithinAThousandSchedules) {
  SetLogLevel(LogLevel::kError);
  const uint64_t seed = (uint64_t{std::random_device()()} << 20) | 1;
  const std::string noticed = WhatNoticed(GetParam().mutation, seed);
  std::cout << GetParam().name << ", seeds from " << seed << ": " << noticed << "\n";
  EXPECT_FALSE(noticed.empty());
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
                      Planted{Mutation::kMovedTokenRepeated, "MovedTokenRepeated"}),
    [](const auto& planted) { return std::string(planted.param.name); });

TEST(Mutations, NoneIsMissedWithoutAny) {
  SetLogLevel(LogLevel::kError);
  const uint64_t seed = (uint64_t{std::random_device()()} << 20) | 1;
  EXPECT_EQ(WhatNoticed(Mutation::kNone, seed), "") << "seeds from " << seed;
}

}  // namespace
}  // namespace sim
}  // namespace tandem
