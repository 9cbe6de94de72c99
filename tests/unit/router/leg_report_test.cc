// Goal: whatever a node says of a leg, what the router keeps of it, counts and tells clients is
// finite, within its bounds and small; what an honest node says is kept as it is.
#include "router/core/leg_report.h"

#include <cmath>

#include "common/base/node_id.h"
#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kDayMs = 24 * 3600 * 1e3;

void SetTokens(int64_t count, v1::TokensBySource& tokens) {
  tokens.set_computed(count);
  tokens.set_received(count);
  tokens.set_cached(count);
  tokens.set_from_host_memory(count);
  tokens.set_from_disk(count);
  tokens.set_fetched(count);
}

void SetTimes(double ms, v1::Installed& installed) {
  installed.set_kv_transfer_ms(ms);
  installed.set_kv_receive_ms(ms);
  installed.set_kv_hidden_ms(ms);
  installed.set_kv_beyond_ms(ms);
}

v1::NodeEvent InstalledWith(int64_t figure, double ms, const std::string& transport) {
  v1::NodeEvent event;
  v1::Installed& installed = *event.mutable_installed();
  SetTokens(figure, *installed.mutable_tokens());
  SetTokens(figure, *installed.mutable_prefill_tokens());
  installed.set_kv_bytes_received(figure);
  SetTimes(ms, installed);
  installed.set_transport(transport);
  return event;
}

v1::NodeEvent FinishedWith(int creditors, size_t name_bytes, int64_t figure, double odd) {
  v1::NodeEvent event;
  v1::LentUse& lent = *event.mutable_leg_finished()->mutable_lent();
  for (int i = 0; i < creditors; ++i) {
    v1::LentUse::Creditor& creditor = *lent.add_creditors();
    creditor.set_node_id(std::string(name_bytes, 'n'));
    creditor.set_loans(figure < 0 ? std::numeric_limits<int32_t>::min() : 3);
    creditor.set_blocks(figure);
  }
  lent.set_tokens_max(figure);
  lent.set_steps(figure);
  lent.set_awaited_ms(odd);
  lent.set_locality(odd);
  return event;
}

TEST(LegReport, WhatCanBeIsKeptAsItIs) {
  for (const v1::NodeEvent& event :
       {InstalledWith(0, 0, ""), InstalledWith(1000, 2.5, "shm+mapped"),
        InstalledWith(kReportedCountMax, kDayMs, std::string(kTransportNameMax, 't')),
        FinishedWith(2, 10, 1000, 0.5), FinishedWith(Fleet::kDebtsMax, kNodeIdBytesMax, 0, 1)})
    EXPECT_EQ(BoundedLegReport(event).SerializeAsString(), event.SerializeAsString())
        << event.ShortDebugString();
  v1::NodeEvent bytes = InstalledWith(0, 0, "tcp");
  bytes.mutable_installed()->set_kv_bytes_received(kReportedBytesMax);
  EXPECT_EQ(BoundedLegReport(bytes).SerializeAsString(), bytes.SerializeAsString());
}

TEST(LegReport, FiguresOfATransferAreBounded) {
  for (const int64_t figure : {kLeast, int64_t{-1}, kReportedCountMax + 1, kMost}) {
    const v1::NodeEvent event = BoundedLegReport(InstalledWith(figure, 0, "tcp"));
    const int64_t count = figure < 0 ? 0 : kReportedCountMax;
    for (const v1::TokensBySource& tokens :
         {event.installed().tokens(), event.installed().prefill_tokens()}) {
      EXPECT_EQ(tokens.computed(), count);
      EXPECT_EQ(tokens.received(), count);
      EXPECT_EQ(tokens.cached(), count);
      EXPECT_EQ(tokens.from_host_memory(), count);
      EXPECT_EQ(tokens.from_disk(), count);
      EXPECT_EQ(tokens.fetched(), count);
    }
    EXPECT_EQ(event.installed().kv_bytes_received(),
              std::clamp<int64_t>(figure, 0, kReportedBytesMax));
  }
  for (const auto& [said, kept] : std::initializer_list<std::pair<double, double>>{
           {-1, 0}, {-kInfinity, 0}, {kInfinity, 0}, {kNan, 0}, {1e300, kDayMs}}) {
    const v1::NodeEvent event = BoundedLegReport(InstalledWith(0, said, "tcp"));
    EXPECT_EQ(event.installed().kv_transfer_ms(), kept) << said;
    EXPECT_EQ(event.installed().kv_receive_ms(), kept) << said;
    EXPECT_EQ(event.installed().kv_hidden_ms(), kept) << said;
    EXPECT_EQ(event.installed().kv_beyond_ms(), kept) << said;
  }
}

TEST(LegReport, LongNamesAreNotKept) {
  const auto named = [](size_t bytes) {
    return BoundedLegReport(InstalledWith(1, 1, std::string(bytes, 't'))).installed().transport();
  };
  EXPECT_EQ(named(kTransportNameMax).size(), kTransportNameMax);
  EXPECT_EQ(named(kTransportNameMax + 1), "");
  EXPECT_EQ(named(1 << 20), "");
}

TEST(LegReport, WhatASequenceHadLentIsBounded) {
  for (const int64_t figure : {kLeast, kMost}) {
    const v1::NodeEvent event =
        BoundedLegReport(FinishedWith(Fleet::kDebtsMax + 1, kNodeIdBytesMax + 1, figure, kNan));
    const v1::LentUse& lent = event.leg_finished().lent();
    const int64_t count = figure < 0 ? 0 : kReportedCountMax;
    EXPECT_EQ(lent.creditors_size(), Fleet::kDebtsMax);
    for (const v1::LentUse::Creditor& creditor : lent.creditors()) {
      EXPECT_EQ(creditor.node_id().size(), kNodeIdBytesMax);
      EXPECT_EQ(creditor.loans(), figure < 0 ? 0 : 3);
      EXPECT_EQ(creditor.blocks(), count);
    }
    EXPECT_EQ(lent.tokens_max(), count);
    EXPECT_EQ(lent.steps(), count);
    EXPECT_EQ(lent.awaited_ms(), 0);
    EXPECT_EQ(lent.locality(), 0);
  }
  EXPECT_EQ(BoundedLegReport(FinishedWith(0, 0, 0, 7)).leg_finished().lent().locality(), 1);
}

// All of it together, in what the client of a request gets.
TEST(LegReport, AClientsRouteIsBounded) {
  SetLogLevel(LogLevel::kError);
  for (const int64_t figure : {kLeast, kMost}) {
    CoreHarness h;
    h.JoinDecode(kD0, "d0");
    h.JoinPrefill(kP0, "p0");
    ASSERT_OK(h.Submit("r"));
    const v1::Leg decode = h.NextRun(kD0).leg();
    h.Say(kD0, {Reserved(decode)});
    const v1::Leg prefill = h.NextPrefill(kP0).leg();
    v1::NodeEvent finished = PrefillFinished(prefill, 0, 0);
    SetTokens(figure, *finished.mutable_prefill_finished()->mutable_tokens());
    h.Say(kP0, {Generated(prefill, {0}), finished});
    v1::NodeEvent installed = InstalledWith(figure, kNan, std::string(1 << 20, 't'));
    *installed.mutable_installed()->mutable_leg() = decode;
    v1::NodeEvent ended = FinishedWith(1000, 1000, figure, kNan);
    v1::LegFinished& end = *ended.mutable_leg_finished();
    *end.mutable_leg() = decode;
    end.set_reason(v1::FINISH_REASON_LENGTH);
    end.set_output_tokens(10);
    h.Say(kD0, {installed, Generated(decode, {1, 2, 3, 4, 5, 6, 7, 8, 9}), ended});
    ASSERT_TRUE(h.client("r").done.has_value()) << h.client("r").failure;
    const SequenceDone& done = *h.client("r").done;
    const int64_t count = figure < 0 ? 0 : kReportedCountMax;
    EXPECT_EQ(done.route.prefill_tokens().computed(), count);
    EXPECT_EQ(done.route.decode_tokens().cached(), count);
    EXPECT_EQ(done.route.kv_bytes_moved(), figure < 0 ? 0 : kReportedBytesMax);
    EXPECT_EQ(done.route.kv_transfer_ms(), 0);
    EXPECT_EQ(done.route.transport(), "");
    EXPECT_EQ(done.usage.cached_tokens(), figure < 0 ? 100 : 0);
    EXPECT_LE(done.route.ByteSizeLong(), Fleet::kDebtsMax * (kNodeIdBytesMax + 32) + 512);
    EXPECT_TRUE(h.core().fleet().Find(NodeKey(kD0))->transport.empty());
  }
}

// What was fetched, as prefill and decode nodes report it.
TEST(LegReport, WhatAFetchTookIsBounded) {
  const auto bounded = [](bool by_decode_node, int64_t bytes, double ms, size_t name_bytes) {
    v1::NodeEvent event;
    v1::FetchedKv& fetched = by_decode_node ? *event.mutable_reserved()->mutable_fetched()
                                            : *event.mutable_prefill_finished()->mutable_fetched();
    fetched.set_kv_bytes_received(bytes);
    fetched.set_kv_transfer_ms(ms);
    fetched.set_kv_receive_ms(ms);
    fetched.set_transport(std::string(name_bytes, 't'));
    const v1::NodeEvent kept = BoundedLegReport(event);
    return by_decode_node ? kept.reserved().fetched() : kept.prefill_finished().fetched();
  };
  for (const bool by_decode_node : {false, true}) {
    const v1::FetchedKv honest = bounded(by_decode_node, 1000, 2.5, kTransportNameMax);
    EXPECT_EQ(honest.kv_bytes_received(), 1000);
    EXPECT_EQ(honest.kv_transfer_ms(), 2.5);
    EXPECT_EQ(honest.kv_receive_ms(), 2.5);
    EXPECT_EQ(honest.transport().size(), kTransportNameMax);
    const v1::FetchedKv odd = bounded(by_decode_node, kMost, kNan, kTransportNameMax + 1);
    EXPECT_EQ(odd.kv_bytes_received(), kReportedBytesMax);
    EXPECT_EQ(odd.kv_transfer_ms(), 0);
    EXPECT_EQ(odd.transport(), "");
    const v1::FetchedKv low = bounded(by_decode_node, kLeast, kInfinity, 0);
    EXPECT_EQ(low.kv_bytes_received(), 0);
    EXPECT_EQ(low.kv_receive_ms(), 0);
    EXPECT_EQ(bounded(by_decode_node, 0, 2 * kDayMs, 0).kv_receive_ms(), kDayMs);
  }
}

}  // namespace
}  // namespace tandem::router
