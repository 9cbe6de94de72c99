// Goal: a chaos run's faults follow from its seed, one each period, all over before the end, and
// never take the last router or decode node.
#include "cli/chaos/fault_plan.h"

#include <map>
#include <set>

#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

FaultPlanOptions AllKinds(uint64_t seed) {
  FaultPlanOptions options;
  options.seed = seed;
  options.length = absl::Minutes(10);
  for (int i = 0; i < kChaosFaultKinds; ++i)
    options.kinds.push_back(static_cast<ChaosFaultKind>(i));
  return options;
}

std::string TextOf(const FaultPlanOptions& options) {
  std::string text;
  for (const ChaosFault& fault : PlanFaults(options))
    text += ToText(fault, options.topology) + "\n";
  return text;
}

TEST(FaultPlan, FollowsFromTheSeed) {
  EXPECT_EQ(TextOf(AllKinds(7)), TextOf(AllKinds(7)));
  EXPECT_NE(TextOf(AllKinds(7)), TextOf(AllKinds(8)));
}

TEST(FaultPlan, OneEachPeriodOfEveryKindAndAllOverBeforeTheEnd) {
  const FaultPlanOptions options = AllKinds(3);
  const std::vector<ChaosFault> faults = PlanFaults(options);
  // The last draw or two may not fit before the end.
  EXPECT_GE(faults.size(), 297);
  std::map<std::string, int> groups;
  for (size_t i = 0; i < faults.size(); ++i) {
    EXPECT_EQ(faults[i].at, options.period * static_cast<double>(i + 1));
    EXPECT_LE(faults[i].end(), options.length);
    EXPECT_GT(faults[i].lasts, absl::ZeroDuration());
    ++groups[GroupOf(faults[i], options.topology)];
  }
  EXPECT_EQ(groups.size(), 7 * 3 + 1) << "each kind for each role, and the disk";
}

TEST(FaultPlan, LeavesARouterAndADecodeNodeUp) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    FaultPlanOptions options = AllKinds(seed);
    options.kinds = {ChaosFaultKind::kKill, ChaosFaultKind::kPause, ChaosFaultKind::kMemory,
                     ChaosFaultKind::kDrain};
    options.period = absl::Milliseconds(300);
    options.length = absl::Minutes(1);
    const std::vector<ChaosFault> faults = PlanFaults(options);
    EXPECT_GT(faults.size(), 20);
    for (const ChaosFault& now : faults) {
      std::map<std::string, std::set<int>> down;
      for (const ChaosFault& fault : faults)
        if (fault.at <= now.at && now.at < fault.end())
          down[std::string(options.topology.RoleOf(fault.victim))].insert(fault.victim);
      EXPECT_LT(down["router"].size(), 2) << "seed " << seed;
      EXPECT_LT(down["decode"].size(), 3) << "seed " << seed;
    }
  }
}

TEST(FaultPlan, StrikesOnlyTheRolesItIsTold) {
  FaultPlanOptions options = AllKinds(5);
  options.kinds = {ChaosFaultKind::kKill, ChaosFaultKind::kPause};
  options.roles = {"prefill", "decode"};
  std::set<std::string> struck;
  for (const ChaosFault& fault : PlanFaults(options))
    struck.insert(std::string(options.topology.RoleOf(fault.victim)));
  EXPECT_EQ(struck, (std::set<std::string>{"prefill", "decode"}));
}

TEST(FaultPlan, NamesWhatStrikesWhom) {
  const ChaosTopology topology;
  EXPECT_EQ(topology.NameOf(0), "router-0");
  EXPECT_EQ(topology.NameOf(3), "prefill-1");
  EXPECT_EQ(topology.NameOf(6), "decode-2");
  ChaosFault fault;
  fault.kind = ChaosFaultKind::kPartition;
  fault.victim = 5;
  fault.other = 0;
  fault.one_way = true;
  EXPECT_THAT(ToText(fault, topology), HasSubstr("partition decode-1 -> router-0"));
  EXPECT_EQ(GroupOf(fault, topology), "partition decode");
}

TEST(FaultPlan, UnknownKindsAreNamed) {
  for (int i = 0; i < kChaosFaultKinds; ++i) {
    const auto kind = static_cast<ChaosFaultKind>(i);
    ASSERT_OK_AND_ASSIGN(const ChaosFaultKind parsed, ParseChaosFault(ChaosFaultName(kind)));
    EXPECT_EQ(parsed, kind);
  }
  const absl::Status status = ParseChaosFault("meteor").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"meteor\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("slow-link"));
}

}  // namespace
}  // namespace tandem::cli
