// Goal: the page for Prometheus counts what happened: a prompt's tokens once however many answers
// it has, each node's counters as counters, and no blocks of nodes that are gone.
#include "router/front_end/request_metrics.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Answers to one prompt: one of them has its tokens.
v1::Finished FinishedOf(int32_t prompt_tokens, int32_t output_tokens) {
  v1::Finished finished;
  finished.set_reason(v1::FINISH_REASON_LENGTH);
  finished.mutable_usage()->set_prompt_tokens(prompt_tokens);
  finished.mutable_usage()->set_output_tokens(output_tokens);
  return finished;
}

TEST(RequestMetrics, APromptOfSeveralAnswersCountsOnce) {
  RequestMetrics metrics("m");
  for (const int32_t prompt_tokens : {100, 0, 0}) {
    metrics.OnFinished(FinishedOf(prompt_tokens, 7));
  }
  metrics.OnRequestFinished(v1::FINISH_REASON_LENGTH, absl::Seconds(1), absl::Seconds(2));
  const std::string text = metrics.Text({}, {});
  for (const char* name : {"tandem_prompt_tokens", "vllm:request_prompt_tokens"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("\n", name, "_count{model_name=\"m\"} 1\n")));
    EXPECT_THAT(text, HasSubstr(absl::StrCat("\n", name, "_sum{model_name=\"m\"} 100\n")));
    EXPECT_THAT(text, HasSubstr(absl::StrCat(name, "_bucket{model_name=\"m\",le=\"1\"} 0\n")));
  }
  EXPECT_THAT(text, HasSubstr("vllm:request_generation_tokens_count{model_name=\"m\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prompt_tokens_total{model_name=\"m\"} 100\n"));
  for (const char* name : {"tandem_requests_finished_total", "vllm:request_success_total"}) {
    EXPECT_THAT(text,
                HasSubstr(absl::StrCat(name, "{model_name=\"m\",finished_reason=\"length\"} 1\n")));
  }
  EXPECT_THAT(text, HasSubstr("tandem_request_seconds_sum{model_name=\"m\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("tandem_queue_seconds_sum{model_name=\"m\"} 1\n"));
  EXPECT_EQ(metrics.totals().requests, 1);
}

TEST(RequestMetrics, TransfersAreSplitIntoWireHiddenAndBeyond) {
  RequestMetrics metrics("m");
  v1::Route route;
  metrics.OnSequence(route, {});  // nothing moved
  route.set_kv_bytes_moved(1 << 20);
  route.set_kv_receive_ms(250);
  route.set_kv_hidden_ms(125);
  route.set_kv_beyond_ms(0.75);
  metrics.OnSequence(route, {});
  const std::string text = metrics.Text({}, {});
  EXPECT_THAT(text, HasSubstr("\ntandem_kv_wire_seconds_sum{model_name=\"m\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("\ntandem_kv_hidden_seconds_sum{model_name=\"m\"} 0.125\n"));
  EXPECT_THAT(text, HasSubstr("\ntandem_kv_beyond_seconds_count{model_name=\"m\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("tandem_kv_beyond_seconds_bucket{model_name=\"m\",le=\"0.0005\"} 0"));
  EXPECT_THAT(text, HasSubstr("tandem_kv_beyond_seconds_bucket{model_name=\"m\",le=\"0.001\"} 1"));
}

TEST(RequestMetrics, ComparesFirstTokensWithTheirPredictions) {
  RequestMetrics metrics("m");
  metrics.OnSequence({}, {});  // nothing was predicted
  for (const double queue_ms : {0, 500}) {
    v1::Timing timing;
    timing.set_queue_ms(queue_ms);
    timing.set_first_token_ms(queue_ms + 375);
    timing.set_first_token_predicted_ms(250);
    metrics.OnSequence({}, timing);
  }
  const std::string text = metrics.Text({}, {});
  for (const char* line : {"predicted_seconds_total{model_name=\"m\"} 0.5\n",
                           "measured_seconds_total{model_name=\"m\"} 0.75\n",
                           "measured_to_predicted_ratio_count{model_name=\"m\"} 2\n",
                           "measured_to_predicted_ratio_sum{model_name=\"m\"} 3\n",
                           "measured_to_predicted_ratio_bucket{model_name=\"m\",le=\"1.25\"} 0\n",
                           "measured_to_predicted_ratio_bucket{model_name=\"m\",le=\"1.5\"} 2\n"})
    EXPECT_THAT(text, HasSubstr(absl::StrCat("\ntandem_first_token_", line)));
}

TEST(RequestMetrics, NodesCountersAreCounters) {
  v1::GetStatusResponse status;
  for (const char* role : {"prefill", "decode"}) {
    v1::NodeStatus& node = *status.add_nodes();
    node.set_node_id(absl::StrCat(role, "-0"));
    node.set_role(role);
    node.mutable_counters()->set_kv_bytes_sent(role[0] == 'p' ? 4096 : 0);
    node.mutable_counters()->set_kv_bytes_received(role[0] == 'p' ? 0 : 4096);
    v1::TokensBySource& tokens = *node.mutable_counters()->mutable_prompt_tokens();
    tokens.set_computed(33);
    tokens.set_received(4);
    tokens.set_cached(100);
    tokens.set_from_host_memory(20);
    tokens.set_from_disk(30);
    tokens.set_fetched(40);
  }
  const std::string text = RequestMetrics("m").Text(status, {});
  EXPECT_THAT(text, HasSubstr("# TYPE tandem_node_kv_sent_bytes_total counter\n"));
  EXPECT_THAT(text, HasSubstr("tandem_node_kv_sent_bytes_total{node=\"prefill-0\",role=\"prefill\"}"
                              " 4096\n"));
  EXPECT_THAT(text, HasSubstr("tandem_node_kv_received_bytes_total{node=\"decode-0\","
                              "role=\"decode\"} 4096\n"));
  EXPECT_THAT(text, HasSubstr("tandem_node_computed_prompt_tokens_total{node=\"decode-0\","
                              "role=\"decode\"} 33\n"));
  for (const auto& [source, tokens] :
       std::initializer_list<std::pair<const char*, int>>{{"computed", 33},
                                                          {"received", 4},
                                                          {"blocks", 10},
                                                          {"host", 20},
                                                          {"disk", 30},
                                                          {"fetched", 40}})
    EXPECT_THAT(text, HasSubstr(absl::StrCat("tandem_node_prompt_tokens_total{node=\"decode-0\","
                                             "role=\"decode\",source=\"",
                                             source, "\"} ", tokens, "\n")));
  EXPECT_THAT(text, Not(HasSubstr("# TYPE tandem_node_generated_tokens_total gauge")));
  // What only counts up is no gauge.
  EXPECT_THAT(text, HasSubstr("# TYPE tandem_node_kv_refused_total counter\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE tandem_fleet_streams_refused_total counter\n"));
}

TEST(RequestMetrics, ADebtorsLinksAreCounted) {
  v1::GetStatusResponse status;
  v1::NodeStatus& node = *status.add_nodes();
  node.set_node_id("d");
  node.set_role("decode");
  v1::NodeCounters& counters = *node.mutable_counters();
  counters.set_lending_questions(60);
  counters.set_lending_questions_failed(2);
  counters.set_lending_bytes_sent(4000);
  counters.set_lending_bytes_received(5000);
  counters.set_lending_round_trip_s(0.25);
  counters.set_lending_awaited_s(0.125);
  counters.set_loans_recalled(3);
  counters.set_lending_refusals(4);
  counters.set_lending_connections_refused(5);
  const std::string text = RequestMetrics("m").Text(status, {});
  for (const char* line : {"lending_questions_total", "lending_round_trip_seconds_total"})
    EXPECT_THAT(text, HasSubstr(absl::StrCat("# TYPE tandem_node_", line, " counter\n")));
  const auto has = [&](const char* name, const char* value) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("tandem_node_", name, "{node=\"d\",role=\"decode\"} ",
                                             value, "\n")));
  };
  has("lending_questions_total", "60");
  has("lending_questions_failed_total", "2");
  has("lending_sent_bytes_total", "4000");
  has("lending_received_bytes_total", "5000");
  has("lending_round_trip_seconds_total", "0.25");
  has("lending_awaited_seconds_total", "0.125");
  has("loans_recalled_total", "3");
  has("lending_refusals_total", "4");
  has("lending_connections_refused_total", "5");
}

TEST(RequestMetrics, NodesThatAreGoneHoldNothing) {
  v1::GetStatusResponse status;
  for (const char* state : {"ready", "draining", "lost"}) {
    v1::NodeStatus& node = *status.add_nodes();
    node.set_node_id(absl::StrCat("was-", state));
    node.set_role("decode");
    node.set_state(state);
    node.mutable_load()->set_blocks_used(25);
    node.mutable_load()->set_blocks_total(100);
  }
  status.mutable_nodes(2)->mutable_load()->set_blocks_used(0);
  const std::string text = RequestMetrics("m").Text(status, {});
  EXPECT_THAT(text, HasSubstr("vllm:kv_cache_usage_perc{model_name=\"m\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("tandem_node_ready{node=\"was-lost\",role=\"decode\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("tandem_node_blocks{node=\"was-draining\",role=\"decode\"} 100\n"));
  EXPECT_THAT(text, Not(HasSubstr("tandem_node_blocks{node=\"was-lost\"")));
}

TEST(RequestMetrics, ShowsPredictedAndMeasuredStepTimes) {
  v1::GetStatusResponse status;
  for (const char* id : {"new", "d0"}) {
    v1::NodeStatus& node = *status.add_nodes();
    node.set_node_id(id);
    node.set_role("decode");
    node.set_state("ready");
  }
  v1::StepCost& cost = *status.mutable_nodes(1)->mutable_step_cost();
  cost.set_samples(200);
  cost.set_predicted_us(1.5e6);
  cost.set_actual_us(2.5e6);
  cost.set_median_relative_error(0.25);
  status.mutable_nodes(1)->mutable_storage_cost()->mutable_read()->set_bytes_per_second(5e8);
  status.mutable_nodes(1)->mutable_storage_cost()->mutable_host_read()->set_bytes_per_second(4e9);
  status.mutable_nodes(1)->mutable_load()->set_blocks_in_host_memory(3);
  status.mutable_nodes(1)->mutable_load()->set_blocks_on_disk(8);
  v1::NodeCounters& counters = *status.mutable_nodes(1)->mutable_counters();
  counters.mutable_host_memory()->set_blocks_read(5);
  counters.mutable_host_memory()->set_bytes_read(5000);
  counters.mutable_disk()->set_blocks_read(2);
  const std::string text = RequestMetrics("m").Text(status, {});
  EXPECT_THAT(text, HasSubstr("tandem_node_storage_bytes_per_second{node=\"d0\",role=\"decode\","
                              "tier=\"disk\",direction=\"read\"} 500000000\n"));
  const auto of_tier = [](const char* name, const char* tier, const char* value) {
    return absl::StrCat("tandem_node_", name, "{node=\"d0\",role=\"decode\",tier=\"", tier, "\"",
                        value, "\n");
  };
  EXPECT_THAT(text, HasSubstr(of_tier("storage_bytes_per_second", "host",
                                      ",direction=\"read\"} 4000000000")));
  EXPECT_THAT(text, HasSubstr(of_tier("tier_blocks", "host", "} 3")));
  EXPECT_THAT(text, HasSubstr(of_tier("tier_blocks", "disk", "} 8")));
  EXPECT_THAT(text, HasSubstr(of_tier("tier_hits_total", "host", "} 5")));
  EXPECT_THAT(text, HasSubstr(of_tier("tier_hits_total", "disk", "} 2")));
  EXPECT_THAT(text, HasSubstr(of_tier("tier_read_bytes_total", "host", "} 5000")));
  EXPECT_THAT(text, Not(HasSubstr("tandem_node_storage_bytes_per_second{node=\"new\"")));
  const auto line = [](const char* name, const char* value) {
    return absl::StrCat(name, "{node=\"d0\",role=\"decode\"} ", value, "\n");
  };
  EXPECT_THAT(text, HasSubstr(line("tandem_node_steps_measured_total", "200")));
  EXPECT_THAT(text, HasSubstr(line("tandem_node_step_predicted_seconds_total", "1.5")));
  EXPECT_THAT(text, HasSubstr(line("tandem_node_step_seconds_total", "2.5")));
  EXPECT_THAT(text, HasSubstr(line("tandem_node_step_error_ratio", "0.25")));
  EXPECT_THAT(text, Not(HasSubstr("tandem_node_step_error_ratio{node=\"new\"")));
}

}  // namespace
}  // namespace tandem::router
