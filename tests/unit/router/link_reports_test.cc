// Goal: whatever nodes report of their KV transfers, and however often, the router's predictions of
// transfers stay finite and within an hour, its figures of a pair never fall or wrap, and it keeps
// one record for each pair of joined nodes. What an honest pair has measured stays what is
// predicted of it, and a pair that lied is predicted rightly after it has told the truth for a
// while.
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "router/fleet/fleet.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
constexpr double kHourUs = 3.6e9;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kOddMs[] = {
    0,      -0.0,   -1,     kNan,  kInfinity, -kInfinity,
    1e-320, 1e-200, 1e-100, 1e-9,  1e-3,      1,
    1e5,    1e6,    1e9,    1e300, -1e300,    std::numeric_limits<double>::min()};
constexpr int64_t kOddBytes[] = {0,
                                 -1,
                                 1,
                                 4096,
                                 1 << 30,
                                 int64_t{1} << 50,
                                 int64_t{1} << 62,
                                 std::numeric_limits<int64_t>::max(),
                                 std::numeric_limits<int64_t>::min()};
constexpr double kAskedBytes[] = {1, 4096, 1e6, 1e9, 1e15, 1e300};

// A decode node and two prefill nodes that send to it.
class Reports {
 public:
  static constexpr uint64_t kD0 = 1, kP0 = 2, kP1 = 3, kUnknown = 99;

  Reports() {
    EXPECT_OK(Join(kD0, "d0", v1::NODE_ROLE_DECODE));
    EXPECT_OK(Join(kP0, "p0", v1::NODE_ROLE_PREFILL));
    EXPECT_OK(Join(kP1, "p1", v1::NODE_ROLE_PREFILL));
  }
  absl::Status Join(uint64_t key, const std::string& id, v1::NodeRole role) {
    const v1::Registration registration = TestRegistration(id, role);
    const auto replaced = fleet_.CheckJoin(NodeKey(key), registration);
    if (replaced.ok()) fleet_.Join(NodeKey(key), registration, kStart);
    return replaced.status();
  }
  void Report(uint64_t from, int64_t bytes, double ms, const std::string& transport = "tcp") {
    v1::Installed installed;
    installed.set_kv_bytes_received(bytes);
    installed.set_kv_receive_ms(ms);
    installed.set_kv_transfer_ms(ms);
    installed.set_transport(transport);
    fleet_.KvTransferDone(NodeKey(from), NodeKey(kD0), installed);
  }
  // A transfer at a gigabyte a second, after half a millisecond.
  void ReportTruth(uint64_t from, int i) {
    const int64_t bytes = 100'000 * (1 + i % 7);
    Report(from, bytes, 0.5 + static_cast<double>(bytes) / 1e6);
  }
  double PredictedUs(uint64_t from, double bytes) const {
    return fleet_.TransferUs(*fleet_.Find(NodeKey(from)), *fleet_.Find(NodeKey(kD0)), bytes);
  }
  void ExpectSane() const {
    // p1 has no transfers of its own: what is predicted of it comes from all links.
    for (const uint64_t from : {kP0, kP1})
      for (const double bytes : kAskedBytes) {
        const double us = PredictedUs(from, bytes);
        ASSERT_TRUE(us >= 0 && us <= kHourUs) << us << " us for " << bytes << " bytes";
      }
    for (const v1::NodePairStatus& link : Links()) {
      ASSERT_TRUE(std::isfinite(link.fixed_ms()) && link.fixed_ms() >= 0) << link.fixed_ms();
      ASSERT_TRUE(std::isfinite(link.bytes_per_second()) && link.bytes_per_second() >= 0);
      ASSERT_TRUE(std::isfinite(link.rate_relative_error()));
      ASSERT_TRUE(std::isfinite(link.last_transfer_ms()) && link.last_transfer_ms() >= 0)
          << link.last_transfer_ms();
      ASSERT_GE(link.kv_bytes(), 0);
    }
  }
  void Remove(uint64_t key) { fleet_.Remove(NodeKey(key)); }
  google::protobuf::RepeatedPtrField<v1::NodePairStatus> Links() const {
    v1::GetStatusResponse status;
    fleet_.FillStatus(kStart, status);
    return status.links();
  }

 private:
  FirstOfEqual order_;
  Fleet fleet_{TestModel(), {100}, order_};
};

TEST(LinkReports, EachOddFigureAloneIsSurvived) {
  for (const double ms : kOddMs)
    for (const int64_t bytes : kOddBytes) {
      SCOPED_TRACE(absl::StrCat(bytes, " bytes in ", ms, " ms"));
      Reports reports;
      for (int times = 0; times < 3; ++times) {
        reports.Report(Reports::kP0, bytes, ms);
        ASSERT_NO_FATAL_FAILURE(reports.ExpectSane());
      }
      for (int i = 0; i < 3; ++i) reports.ReportTruth(Reports::kP0, i);
      ASSERT_NO_FATAL_FAILURE(reports.ExpectSane());
    }
}

TEST(LinkReports, ManyOddReportsInAnyOrderAreSurvivedAndThenForgotten) {
  Reports reports;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const auto random = NewSeededRandom(seed);
    int64_t bytes_before = 0;
    for (int i = 0; i < 20'000; ++i) {
      reports.Report(Reports::kP0, kOddBytes[random->Below(std::size(kOddBytes))],
                     kOddMs[random->Below(std::size(kOddMs))]);
      if (i % 100 != 0) continue;
      ASSERT_NO_FATAL_FAILURE(reports.ExpectSane()) << "report " << i;
      ASSERT_EQ(reports.Links().size(), 1);
      ASSERT_GE(reports.Links()[0].kv_bytes(), bytes_before) << "the bytes moved became fewer";
      bytes_before = reports.Links()[0].kv_bytes();
    }
    for (int i = 0; i < 2000; ++i) reports.ReportTruth(Reports::kP0, i);
    EXPECT_NEAR(reports.PredictedUs(Reports::kP0, 500'000), 1000, 200)
        << "after the truth for a while";
  }
}

TEST(LinkReports, APairThatLiesChangesNothingOfOneThatIsMeasured) {
  Reports reports;
  for (int i = 0; i < 200; ++i) reports.ReportTruth(Reports::kP1, i);
  const double before = reports.PredictedUs(Reports::kP1, 500'000);
  EXPECT_NEAR(before, 1000, 50);
  for (const double ms : kOddMs)
    for (const int64_t bytes : kOddBytes) reports.Report(Reports::kP0, bytes, ms);
  EXPECT_EQ(reports.PredictedUs(Reports::kP1, 500'000), before);
}

TEST(LinkReports, ReportsOfUnknownAndDepartedNodesLeaveNothing) {
  Reports reports;
  for (uint64_t key = Reports::kUnknown; key < Reports::kUnknown + 20'000; ++key)
    reports.Report(key, 1000, 1);
  EXPECT_EQ(reports.Links().size(), 0);
  for (int visit = 0; visit < 300; ++visit) {  // the same node, each time on a new stream
    const uint64_t key = 1'000 + visit;
    ASSERT_OK(reports.Join(key, "p2", v1::NODE_ROLE_PREFILL));
    for (int times = 0; times < 10; ++times) reports.Report(key, 1000, 1);
    ASSERT_EQ(reports.Links().size(), 1) << "one record for a pair, however many reports";
    reports.Remove(key);
    reports.Report(key, 1000, 1);
    ASSERT_EQ(reports.Links().size(), 0) << "visit " << visit;
  }
}

TEST(LinkReports, AReportWithATransportOfAnAbsurdNameIsNotKept) {
  Reports reports;
  reports.Report(Reports::kP0, 1000, 1, std::string(1 << 20, 'x'));
  EXPECT_EQ(reports.Links().size(), 0);
  reports.Report(Reports::kP0, 1000, 1, "tcp");
  ASSERT_EQ(reports.Links().size(), 1);
  EXPECT_EQ(reports.Links()[0].transport(), "tcp");
}

}  // namespace
}  // namespace tandem::router
