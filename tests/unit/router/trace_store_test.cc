// Goal: the store keeps the last finished requests and no more, each with all its sequences, and
// never more gaps than its bound, whatever requests come; an unknown name is refused in words.
#include "router/front_end/trace_store.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "router/core/request_report.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::UnixEpoch() + absl::Seconds(100);

SequenceDone Done(int32_t sequence, int gaps) {
  SequenceDone done;
  done.sequence_index = sequence;
  done.reason = request::FinishReason::kLength;
  for (int i = 0; i < gaps; ++i) done.timing.add_gap_ms(static_cast<float>(i));
  return done;
}

TEST(TraceStore, TheOldestGoFirst) {
  TraceStore store(3);
  for (int i = 0; i < 10; ++i) store.OnDone(absl::StrCat("r", i), kNow, Done(0, 1));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(store.Find(absl::StrCat("r", i)).ok(), i >= 7) << i;
  const auto last = store.Find("r9");
  ASSERT_TRUE(last.ok());
  ASSERT_EQ(last->sequences_size(), 1) << "of the request whose room it has";
  EXPECT_EQ(last->sequences(0).timing().gap_ms_size(), 1);
  const absl::Status unknown = store.Find("r0").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("\"r0\" is not among the last 3"));
}

// A cut or a client's bytes may leave a message that is no UTF-8, which a proto3 string cannot be
// parsed from again.
TEST(TraceStore, AnErrorOfAnyBytesIsFound) {
  TraceStore store(3);
  store.OnDone("r", kNow, Done(0, 2));
  store.OnFailed("r", kNow, absl::InvalidArgumentError("no model \xc3"));
  const auto trace = store.Find("r");
  ASSERT_OK(trace.status());
  EXPECT_EQ(trace->error(), "INVALID_ARGUMENT: no model \xc3");
  ASSERT_EQ(trace->sequences_size(), 1);
  EXPECT_EQ(trace->sequences(0).timing().gap_ms_size(), 2);
}

std::vector<std::string> Ids(const std::vector<TraceSummary>& summaries) {
  std::vector<std::string> ids;
  for (const TraceSummary& summary : summaries) ids.push_back(summary.request_id);
  return ids;
}

TEST(TraceStore, ListsTheNewestFirstAndOnlyOnesOwn) {
  TraceStore store(10);
  for (int i = 0; i < 4; ++i) store.OnDone(absl::StrCat("alice/r", i), kNow, Done(0, 0));
  store.OnFailed("bob/r", kNow, absl::UnavailableError("no node"));
  EXPECT_THAT(Ids(store.Recent("", 2)), ::testing::ElementsAre("bob/r", "alice/r3"));
  EXPECT_THAT(Ids(store.Recent("alice/", 2)), ::testing::ElementsAre("alice/r3", "alice/r2"));
  EXPECT_THAT(Ids(store.Recent("carol/", 2)), ::testing::IsEmpty());
  EXPECT_TRUE(store.Recent("bob/", 1)[0].failed);
}

TEST(TraceStore, AListLooksAtABoundedNumber) {
  constexpr int kScanned = static_cast<int>(TraceStore::kRecentScanMax);
  TraceStore store(2 * kScanned);
  store.OnDone("alice/old", kNow, Done(0, 0));
  for (int i = 0; i < kScanned - 1; ++i) store.OnDone(absl::StrCat("bob/", i), kNow, Done(0, 0));
  EXPECT_THAT(Ids(store.Recent("alice/", 1)), ::testing::ElementsAre("alice/old"));
  store.OnDone("bob/one more", kNow, Done(0, 0));
  EXPECT_THAT(Ids(store.Recent("alice/", 1)), ::testing::IsEmpty());
}

TEST(TraceStore, SequencesOfARequestStayTogether) {
  TraceStore store(2);
  store.OnDone("r", kNow, Done(0, 2));
  store.OnDone("other", kNow, Done(0, 2));
  store.OnDone("r", kNow, Done(1, 3));
  ASSERT_OK_AND_ASSIGN(const v1::RequestTrace trace, store.Find("r"));
  ASSERT_EQ(trace.sequences_size(), 2);
  EXPECT_EQ(trace.sequences(1).sequence_index(), 1);
  EXPECT_EQ(trace.sequences(1).reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(trace.sequences(1).timing().gap_ms_size(), 3);
  EXPECT_DOUBLE_EQ(trace.submitted_s(), 100);
}

TEST(TraceStore, ALaterRequestTakesAnEarlierOnesName) {
  TraceStore store(2);
  store.OnDone("r", kNow, Done(0, 2));
  store.OnDone("other", kNow, Done(0, 2));
  store.OnFailed("r", kNow + absl::Seconds(1), absl::UnavailableError("no node"));
  ASSERT_OK_AND_ASSIGN(const v1::RequestTrace trace, store.Find("r"));
  EXPECT_EQ(trace.sequences_size(), 0);
  EXPECT_EQ(trace.error(), "UNAVAILABLE: no node");
  EXPECT_OK(store.Find("other").status());
  store.OnDone("third", kNow, Done(0, 2));  // "other" is the oldest now
  EXPECT_OK(store.Find("r").status());
  EXPECT_FALSE(store.Find("other").ok());
}

TEST(TraceStore, GapsOfARequestAreBounded) {
  TraceStore store(2);
  for (int i = 0; i < 100; ++i) store.OnDone("r", kNow, Done(i, 100));
  ASSERT_OK_AND_ASSIGN(const v1::RequestTrace trace, store.Find("r"));
  size_t kept = 0, dropped = 0;
  for (const v1::Finished& finished : trace.sequences()) {
    kept += static_cast<size_t>(finished.timing().gap_ms_size());
    dropped += static_cast<size_t>(finished.timing().gaps_dropped());
  }
  EXPECT_EQ(kept, kTimingGapsMax);
  EXPECT_EQ(kept + dropped, 10'000u);
}

TEST(TraceStore, PlacementsOfARequestAreBounded) {
  TraceStore store(1);
  for (int i = 0; i < static_cast<int>(kPlacementsMax) + 5; ++i) {
    SequenceDone done = Done(i, 0);
    const auto decision = std::make_shared<v1::PlacementDecision>();
    decision->set_sequence_index(i);
    done.placements.push_back(decision);
    store.OnDone("r", kNow, done);
  }
  ASSERT_OK_AND_ASSIGN(const v1::RequestTrace trace, store.Find("r"));
  ASSERT_EQ(trace.placements_size(), static_cast<int>(kPlacementsMax));
  EXPECT_EQ(trace.placements(7).sequence_index(), 7);
  EXPECT_EQ(trace.placements_dropped(), 5);
}

// As on a cluster without room: now and then a request is refused by nodes many times. A store that
// keeps the memory of such traces grows until each of its places had one.
SequenceDone DoneAt(const std::string& node, int32_t sequence, LegName leg) {
  SequenceDone done = Done(sequence, 2);
  done.route.set_decode_node(node);
  done.decode_leg = leg;
  return done;
}

LentReport Lent(const std::string& request_id, LegName leg, int64_t tokens) {
  LentReport report{request_id, leg, "d0", {}};
  report.lent.set_tokens_max(tokens);
  return report;
}

TEST(TraceStore, AReportOfLoansIsAddedToItsSequence) {
  TraceStore store(2);
  store.OnDone("r", kNow, DoneAt("d0", 0, {7, 1}));
  store.OnDone("r", kNow, DoneAt("d0", 1, {8, 3}));
  const int64_t bytes = store.bytes();
  store.OnLent(Lent("r", {8, 3}, 512));
  auto trace = store.Find("r");
  ASSERT_OK(trace.status());
  ASSERT_EQ(trace->sequences_size(), 2);
  EXPECT_FALSE(trace->sequences(0).route().has_lent());
  EXPECT_EQ(trace->sequences(1).route().lent().tokens_max(), 512);
  EXPECT_EQ(trace->sequences(1).timing().gap_ms_size(), 2);
  EXPECT_LT(store.bytes(), 3 * bytes) << "it is there once";
  // More sequences may end afterwards.
  store.OnDone("r", kNow, DoneAt("d0", 2, {9, 1}));
  store.OnLent(Lent("r", {9, 1}, 256));
  trace = store.Find("r");
  ASSERT_OK(trace.status());
  ASSERT_EQ(trace->sequences_size(), 3);
  EXPECT_EQ(trace->sequences(1).route().lent().tokens_max(), 512);
  EXPECT_EQ(trace->sequences(2).route().lent().tokens_max(), 256);
}

TEST(TraceStore, AReportOfLoansThatFitsNoTraceChangesNothing) {
  TraceStore store(1);
  store.OnDone("gone", kNow, DoneAt("d0", 0, {6, 1}));
  store.OnDone("r", kNow, DoneAt("d0", 0, {7, 2}));
  store.OnLent(Lent("gone", {6, 1}, 512));
  store.OnLent(Lent("r", {7, 1}, 512));  // an earlier attempt
  store.OnLent(Lent("r", {6, 2}, 512));  // an earlier request of the same name
  LentReport other_node = Lent("r", {7, 2}, 512);
  other_node.decode_node = "d1";
  store.OnLent(other_node);
  LentReport large = Lent("r", {7, 2}, 512);
  large.lent.add_creditors()->set_node_id(std::string(TraceStore::kLentBytesMax, 'd'));
  store.OnLent(large);
  const auto trace = store.Find("r");
  ASSERT_OK(trace.status());
  EXPECT_FALSE(trace->sequences(0).route().has_lent());
  EXPECT_EQ(store.Find("gone").status().code(), absl::StatusCode::kNotFound);
  // A router that keeps no traces gets reports, too. Answers without a leg have no number.
  TraceStore none(0), unnamed(1);
  none.OnLent(Lent("r", {7, 2}, 512));
  unnamed.OnDone("r", kNow, DoneAt("d0", 0, {}));
  unnamed.OnLent(Lent("r", {}, 512));
  EXPECT_FALSE(unnamed.Find("r")->sequences(0).route().has_lent());
}

TEST(TraceStore, LongTracesLeaveTheirMemory) {
  TraceStore store(50);
  const auto decision = std::make_shared<v1::PlacementDecision>();
  for (int i = 0; i < 20; ++i) decision->add_decode_nodes()->set_node_id(std::string(50, 'x'));
  SequenceDone refused = Done(0, 1000), easy = Done(0, 1);
  refused.placements.assign(kPlacementsMax, decision);
  easy.placements.assign(1, decision);
  int64_t most_of_easy = 0;
  for (int i = 0; i < 2000; ++i) {
    const bool long_one = i % 101 == 0;
    store.OnDone(absl::StrCat("r", i), kNow, long_one ? refused : easy);
    if (i % 101 == 100) most_of_easy = std::max(most_of_easy, store.bytes());
  }
  // Fifty traces of one decision each.
  EXPECT_LT(most_of_easy, 50 * 2000);
  EXPECT_GT(most_of_easy, 50 * 1000);
}

TEST(TraceStore, OfNoRequestsKeepsNone) {
  TraceStore store(0);
  store.OnDone("r", kNow, Done(0, 1));
  store.OnFailed("s", kNow, absl::UnavailableError("x"));
  EXPECT_FALSE(store.Find("r").ok());
  EXPECT_FALSE(store.Find("s").ok());
}

TEST(RequestReport, CountsPlacementsBeyondItsBound) {
  RequestReport report;
  const auto decision = std::make_shared<v1::PlacementDecision>();
  for (size_t i = 0; i < kPlacementsMax + 3; ++i) report.AddPlacement(decision);
  EXPECT_EQ(report.placements().size(), kPlacementsMax);
  EXPECT_EQ(report.placements_dropped(), 3);
}

TEST(RequestSteps, CountsGapsBeyondItsBound) {
  RequestSteps steps;
  steps.submitted = kNow;
  for (size_t i = 0; i < kTimingGapsMax + 11; ++i) {
    steps.OnToken(kNow + absl::Milliseconds(static_cast<int64_t>(i)));
  }
  const v1::Timing timing = steps.Timing(kNow + absl::Seconds(9));
  EXPECT_EQ(timing.gap_ms_size(), static_cast<int>(kTimingGapsMax));
  EXPECT_EQ(timing.gaps_dropped(), 10);
  EXPECT_FLOAT_EQ(timing.gap_ms(7), 1);
}

TEST(RequestSteps, APredictionHoldsUntilAnotherNodeSendsTheFirstToken) {
  RequestSteps steps;
  steps.submitted = kNow;
  steps.OnPlaced(kNow, absl::Milliseconds(30));
  EXPECT_EQ(steps.Timing(kNow).first_token_predicted_ms(), 0) << "no first token has come";
  RequestSteps replaced = steps;
  replaced.OnSenderReplaced();
  for (RequestSteps* each : {&steps, &replaced}) each->OnToken(kNow + absl::Milliseconds(25));
  steps.OnSenderReplaced();  // what comes later changes nothing
  EXPECT_EQ(steps.Timing(kNow).first_token_predicted_ms(), 30);
  EXPECT_EQ(replaced.Timing(kNow).first_token_predicted_ms(), 0);
}

}  // namespace
}  // namespace tandem::router
