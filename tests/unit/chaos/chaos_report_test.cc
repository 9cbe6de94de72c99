// Goal: every broken promise counts, recovered requests are put down to the fault they met, and the
// JSON says what the table says.
#include "cli/chaos/chaos_report.h"

#include <nlohmann/json.hpp>

#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

ChaosRequest Paused(double from_s, double ms, int placements) {
  ChaosRequest record;
  record.placements = placements;
  record.pause_from = absl::Seconds(from_s);
  record.pause_to = record.pause_from + absl::Milliseconds(ms);
  return record;
}

ChaosFault Fault(ChaosFaultKind kind, int victim, double at_s) {
  ChaosFault fault;
  fault.kind = kind;
  fault.victim = victim;
  fault.at = absl::Seconds(at_s);
  fault.lasts = absl::Seconds(1);
  return fault;
}

ChaosFindings Findings() {
  ChaosFindings findings;
  findings.seed = 77;
  findings.faults = {Fault(ChaosFaultKind::kKill, 4, 2), Fault(ChaosFaultKind::kLoss, 2, 4)};
  for (int i = 0; i < 5; ++i) findings.calm.push_back(Paused(0, 10, 1));
  return findings;
}

TEST(ChaosReport, PutsPausesDownToTheNearestFault) {
  ChaosFindings findings = Findings();
  for (int i = 1; i <= 100; ++i) findings.requests.push_back(Paused(2.01, 10 + i, 2));
  findings.requests.push_back(Paused(3.9, 210, 2));
  findings.requests.push_back(Paused(60, 5, 2));
  findings.requests.push_back(Paused(2.01, 5000, 1));  // met nothing: only slow
  const ChaosReport report = Summarize(findings);
  EXPECT_EQ(report.requests, 103);
  EXPECT_EQ(report.recovered, 102);
  EXPECT_EQ(report.calm_pause_ms, 10);
  const ChaosReport::Group& killed = report.groups.at("kill decode");
  EXPECT_EQ(killed.faults, 1);
  EXPECT_EQ(killed.added.count, 100);
  EXPECT_NEAR(killed.added.p50_ms, 50, 1e-6);
  EXPECT_NEAR(killed.added.p99_ms, 99, 1e-6);
  EXPECT_NEAR(killed.added.max_ms, 100, 1e-6);
  EXPECT_NEAR(report.groups.at("loss prefill").added.max_ms, 200, 1e-6);
  EXPECT_EQ(report.groups.at("unknown").added.max_ms, 0);
  ASSERT_EQ(report.slowest.size(), 10u);
  EXPECT_THAT(report.slowest[0], HasSubstr("200.0 ms, loss prefill"));
  EXPECT_THAT(report.slowest[1], HasSubstr("100.0 ms, kill decode"));
  EXPECT_EQ(report.violations(), 0);
}

TEST(ChaosReport, CountsWholeRequestsThatHadLentKv) {
  ChaosFindings findings = Findings();
  ChaosRequest grew = Paused(1, 1, 1), split = Paused(1, 1, 2), left = Paused(1, 1, 1);
  grew.lent_tokens = split.lent_tokens = left.lent_tokens = 512;
  split.split = true;
  left.end = ChaosRequest::End::kCancelled;
  findings.requests = {grew, split, left, Paused(1, 1, 1)};
  const ChaosReport report = Summarize(findings);
  EXPECT_EQ(report.lent, 2);
  EXPECT_EQ(report.lent_split, 1);
  EXPECT_EQ(report.lent_recovered, 1);
  EXPECT_THAT(ToTable(report), HasSubstr("KV lent: 2 requests, 1 of them with split prompts, 1 "));
  EXPECT_EQ(nlohmann::json::parse(ToJson(report))["lent_split"], 1);
}

TEST(ChaosReport, CountsEveryBrokenPromise) {
  ChaosFindings findings = Findings();
  ChaosRequest wrong = Paused(1, 1, 1), lost = Paused(1, 1, 1), left = Paused(1, 1, 2);
  wrong.end = ChaosRequest::End::kMismatch;
  wrong.what = "token 3 is \xff";
  lost.end = ChaosRequest::End::kGivenUp;
  lost.calls = 5;
  left.end = ChaosRequest::End::kCancelled;
  findings.requests = {wrong, lost, left};
  findings.leaks = {"decode-0 leases=1"};
  findings.crashes = {"router-1 ended with signal 6"};
  const ChaosReport report = Summarize(findings);
  EXPECT_EQ(report.violations(), 4);
  EXPECT_EQ(report.recovered, 0);
  EXPECT_EQ(report.asked_again, 4);
  EXPECT_EQ(report.cancelled, 1);
  const std::string table = ToTable(report);
  for (const char* text : {"token 3", "decode-0 leases=1", "router-1 ended", "kill decode"})
    EXPECT_THAT(table, HasSubstr(text));
  const auto json = nlohmann::json::parse(ToJson(report));
  EXPECT_EQ(json["violations"], 4);
  EXPECT_EQ(json["seed"], 77);
  EXPECT_EQ(json["faults"]["kill decode"]["times"], 1);
  EXPECT_EQ(json["leaks"].size(), 1);
}

}  // namespace
}  // namespace tandem::cli
