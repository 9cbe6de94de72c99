// Goal: a trace's waterfall has each step that happened, where it happened; pictures are
// well-formed whatever ids, names and times a router sends.
#include <gmock/gmock.h>

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <sstream>

#include "cli/report/trace_picture.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::Finished Disaggregated() {
  v1::Finished finished;
  finished.set_reason(v1::FINISH_REASON_LENGTH);
  finished.mutable_usage()->set_prompt_tokens(100);
  finished.mutable_usage()->set_output_tokens(3);
  v1::Route& route = *finished.mutable_route();
  route.set_prefill_node("prefill-1");
  route.set_decode_node("decode-2");
  route.set_attempts(1);
  route.mutable_prefill_tokens()->set_computed(100);
  route.mutable_prefill_tokens()->set_cached(80);
  route.mutable_prefill_tokens()->set_from_host_memory(32);
  route.mutable_prefill_tokens()->set_fetched(16);
  route.mutable_decode_tokens()->set_received(96);
  route.set_kv_bytes_moved(1 << 20);
  route.set_kv_transfer_ms(6);
  route.set_kv_receive_ms(4);
  route.set_kv_hidden_ms(3.5);
  route.set_kv_beyond_ms(0.25);
  route.set_transport("shm");
  v1::Timing& timing = *finished.mutable_timing();
  timing.set_queue_ms(1);
  timing.set_reserve_ms(2);
  timing.set_prefill_ms(10);
  timing.set_first_token_ms(13);
  timing.set_install_ms(2);
  timing.set_total_ms(20);
  timing.add_gap_ms(3);
  timing.add_gap_ms(4);
  return finished;
}

std::vector<std::string> Names(const v1::Finished& finished) {
  std::vector<std::string> names;
  for (const TraceStep& step : TraceSteps(finished)) names.push_back(step.name);
  return names;
}

TEST(Trace, StepsFollowEachOther) {
  const std::vector<TraceStep> steps = TraceSteps(Disaggregated());
  ASSERT_THAT(Names(Disaggregated()),
              ElementsAre("queue", "placement", "prefill", "transfer", "insert", "decode"));
  const std::vector<double> from = {0, 1, 3, 9, 13, 13}, took = {1, 2, 10, 6, 2, 7};
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_DOUBLE_EQ(steps[i].from_ms, from[i]) << steps[i].name;
    EXPECT_DOUBLE_EQ(steps[i].ms, took[i]) << steps[i].name;
  }
}

TEST(Trace, WhatDidNotHappenIsLeftOut) {
  v1::Finished local = Disaggregated();
  local.mutable_route()->clear_prefill_node();
  local.mutable_route()->set_kv_bytes_moved(0);
  local.mutable_timing()->set_install_ms(0);
  EXPECT_THAT(Names(local), ElementsAre("queue", "placement", "prefill", "decode"));
  EXPECT_THAT(TraceSteps(local)[2].note, HasSubstr("on decode-2"));
  v1::Finished aborted;
  aborted.mutable_timing()->set_queue_ms(5);
  aborted.mutable_timing()->set_total_ms(5);
  EXPECT_THAT(Names(aborted), ElementsAre("queue"));
}

// The first token may be an earlier attempt's than the route: then the two are not drawn as one.
TEST(Trace, AnEarlierAttemptsTimesAndTheLastOnesRouteStandApart) {
  v1::RequestTrace trace;
  v1::Finished& twice = *trace.add_sequences();
  twice = Disaggregated();
  twice.mutable_route()->set_attempts(2);
  EXPECT_THAT(Names(twice), ElementsAre("queue", "placement", "prefill", "insert", "decode"));
  for (const TraceStep& step : TraceSteps(twice))
    EXPECT_THAT(step.note, Not(HasSubstr("prefill-1"))) << step.name;
  const std::string text = FormatTrace(trace);
  EXPECT_THAT(text, HasSubstr("last attempt  prefill prefill-1: 100 computed"));
  EXPECT_THAT(text, HasSubstr("insert decode-2: 0 computed, 96 received"));
  EXPECT_THAT(text, HasSubstr("transfer 1.00 MiB over shm"));
}

TEST(Trace, TextNamesNodesTimesAndGaps) {
  v1::RequestTrace trace;
  trace.set_request_id("r-7");
  trace.set_submitted_s(1700000000.25);
  *trace.add_sequences() = Disaggregated();
  const std::string text = FormatTrace(trace);
  EXPECT_THAT(text, HasSubstr("request r-7, submitted 2023-11-14 22:13:20.250 UTC"));
  EXPECT_THAT(text, HasSubstr("prefill-1 to decode-2, 1 attempt\n"));
  EXPECT_THAT(text,
              HasSubstr("100 computed, 0 received, 80 cached (32 from host memory, 16 fetched)"));
  EXPECT_THAT(text, HasSubstr("2 between tokens"));
  EXPECT_THAT(text, HasSubstr("longest 4.00 ms, number 2"));
  EXPECT_THAT(text, HasSubstr("1.00 MiB over shm: 4.00 ms on the wire, 3.50 of them behind the "
                              "prefill, 0.25 beyond both"));
  trace.set_error("UNAVAILABLE: gone");
  EXPECT_THAT(FormatTrace(trace), HasSubstr("failed: UNAVAILABLE: gone"));
}

TEST(Trace, LoansAreNamedWithTheirCost) {
  v1::RequestTrace trace;
  *trace.add_sequences() = Disaggregated();
  EXPECT_THAT(FormatTrace(trace), Not(HasSubstr("lent")));
  v1::LentUse& lent = *trace.mutable_sequences(0)->mutable_route()->mutable_lent();
  lent.set_tokens_max(512);
  lent.set_steps(37);
  lent.set_awaited_ms(12.5);
  lent.set_locality(0.75);
  v1::LentUse::Creditor& first = *lent.add_creditors();
  first.set_node_id("decode-1");
  first.set_loans(2);
  first.set_blocks(32);
  v1::LentUse::Creditor& second = *lent.add_creditors();
  second.set_node_id("<d3>");
  second.set_loans(1);
  second.set_blocks(1);
  EXPECT_THAT(FormatTrace(trace),
              HasSubstr("lent        at most 512 tokens at a time, to decode-1 (32 blocks in 2 "
                        "loans), <d3> (1 block in 1 loan); 37 steps waited 12.50 ms for creditors; "
                        "locality 0.750\n"));
  EXPECT_THAT(DrawTrace(trace), HasSubstr("&lt;d3&gt; (1 block in 1 loan)"));
}

TEST(Trace, HostileTracesAreDrawnWell) {
  v1::RequestTrace trace;
  trace.set_request_id("<script>&\"\x01");
  trace.set_error("]]> <b>");
  for (int i = 0; i < 3; ++i) {
    v1::Finished& finished = *trace.add_sequences();
    finished = Disaggregated();
    finished.mutable_route()->set_prefill_node("<p&>");
    finished.mutable_route()->set_kv_transfer_ms(1e9);
    finished.mutable_timing()->set_prefill_ms(i == 0 ? 1e12 : -5);
    for (int gap = 0; gap < 4096; ++gap) finished.mutable_timing()->add_gap_ms(0.01F);
  }
  for (const v1::RequestTrace& one : {trace, v1::RequestTrace()}) {
    const std::string svg = DrawTrace(one);
    std::istringstream text(svg);
    boost::property_tree::ptree tree;
    ASSERT_NO_THROW(boost::property_tree::read_xml(text, tree));
    EXPECT_THAT(svg, Not(HasSubstr("<script>")));
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_FALSE(FormatTrace(one).empty());
  }
}

}  // namespace
}  // namespace tandem::cli
