#include "router/front_end/request_metrics.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tandem::router {
namespace {

std::vector<double> SecondsBounds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120};
}
std::vector<double> TransferBounds() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5};
}
std::vector<double> TokenBounds() {
  return {1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072};
}

std::vector<double> RatioBounds() {
  return {0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2, 4, 10};
}

MetricLabels With(MetricLabels labels, const MetricLabels& more) {
  labels.insert(labels.end(), more.begin(), more.end());
  return labels;
}

void AddLoad(const v1::NodeStatus& node, const MetricLabels& labels, MetricRegistry& page) {
  const auto add = [&](const char* name, const char* help, int64_t value) {
    page.AddGauge(name, help, labels).Set(static_cast<double>(value));
  };
  const v1::NodeLoad& load = node.load();
  add("tandem_node_blocks_used", "KV blocks held by sequences and leases.", load.blocks_used());
  add("tandem_node_blocks_cached", "KV blocks kept as prefix cache.", load.blocks_cached());
  add("tandem_node_blocks", "KV blocks in all.", load.blocks_total());
  add("tandem_node_blocks_stored", "KV blocks that the node has in host memory or on disk.",
      load.blocks_stored());
  const auto add_stored = [&](const char* tier, int64_t blocks) {
    page.AddGauge("tandem_node_tier_blocks",
                  "KV blocks that this tier of the node's storage has; some are in both.",
                  With(labels, {{"tier", tier}}))
        .Set(static_cast<double>(blocks));
  };
  add_stored("host", load.blocks_in_host_memory());
  add_stored("disk", load.blocks_on_disk());
  add("tandem_node_blocks_lent", "KV blocks that the node keeps for other nodes' sequences.",
      load.blocks_lent());
  int64_t borrowed = 0;
  for (const v1::Debt& debt : load.debts()) borrowed += debt.blocks();
  add("tandem_node_blocks_borrowed", "KV blocks of the node's sequences that other nodes keep.",
      borrowed);
  add("tandem_node_sequences_running", "Sequences in the node's batch.", load.sequences_running());
  add("tandem_node_sequences_waiting", "Sequences that wait for a place in the node's batch.",
      load.sequences_waiting());
  const auto add_backlog = [&](const char* thread, int64_t value) {
    page.AddGauge("tandem_node_backlog", "Events and commands that wait for the node's thread.",
                  With(labels, {{"thread", thread}}))
        .Set(static_cast<double>(value));
  };
  add_backlog("engine", load.engine_backlog());
  add_backlog("transfer", load.transfer_backlog());
  add_backlog("storage", load.storage_backlog());
}

void AddLendingCounters(const v1::NodeCounters& counters, const MetricLabels& labels,
                        MetricRegistry& page) {
  const auto count = [&](const char* name, const char* help, int64_t value) {
    page.AddCounter(name, help, labels).Add(static_cast<double>(value));
  };
  count("tandem_node_loans_total",
        "Loans of KV memory that other nodes have taken on for the node.", counters.loans_taken());
  count("tandem_node_partitions_lent_total",
        "Partitions of attention of the node's sequences whose KV went to other nodes.",
        counters.units_lent());
  count("tandem_node_loans_lost_total",
        "Times that a sequence lost loans, and computed their units or itself again.",
        counters.loans_lost());
  count("tandem_node_sequences_held_back_total",
        "Sequences that gave up their KV because an older one of another node needed the memory.",
        counters.sequences_held_back());
  count("tandem_node_sequences_postponed_total",
        "Times that a sequence sat out steps because a creditor had not answered in time.",
        counters.sequences_postponed());
  count("tandem_node_partitions_regained_total",
        "Partitions that were lost with a creditor, and that another node still had.",
        counters.units_regained());
  count("tandem_node_loans_moved_total",
        "Loans of the node that moved to another creditor, because theirs wanted its memory back.",
        counters.loans_moved());
  count("tandem_node_loans_home_total", "Loans of the node whose KV came home.",
        counters.loans_home());
  count("tandem_node_loans_taken_over_total",
        "Loans of prompts that prefill nodes lent, taken over by the node.",
        counters.loans_taken_over());
  count("tandem_node_loans_recalled_total",
        "Loans of the node whose creditors wanted their memory back.", counters.loans_recalled());
}

// What the node asks its creditors, and what debtors ask it.
void AddLendingQuestions(const v1::NodeCounters& counters, const MetricLabels& labels,
                         MetricRegistry& page) {
  const auto add = [&](const char* name, const char* help, double value) {
    page.AddCounter(name, help, labels).Add(value);
  };
  const auto count = [&](const char* name, const char* help, int64_t value) {
    add(name, help, static_cast<double>(value));
  };
  count("tandem_node_lending_answers_total",
        "Questions about lent KV that the node has answered for other nodes.",
        counters.lending_answers());
  count(
      "tandem_node_lending_refusals_total",
      "Questions of other nodes about lent KV that the node does not serve, or that were not well "
      "formed.",
      counters.lending_refusals());
  count("tandem_node_lending_connections_refused_total",
        "Connections for questions about lent KV that the node has refused: without the fleet's "
        "secret, or for another node.",
        counters.lending_connections_refused());
  count("tandem_node_lending_questions_total",
        "Messages with questions about lent KV that the node has sent to its creditors.",
        counters.lending_questions());
  count("tandem_node_lending_questions_failed_total",
        "Parts of questions that got no answer; the rows that needed them failed.",
        counters.lending_questions_failed());
  count("tandem_node_lending_sent_bytes_total", "Questions that the node has sent, in bytes.",
        counters.lending_bytes_sent());
  count("tandem_node_lending_received_bytes_total", "Answers that the node has got, in bytes.",
        counters.lending_bytes_received());
  add("tandem_node_lending_round_trip_seconds_total",
      "Time from the node's questions to their answers, of each that was answered.",
      counters.lending_round_trip_s());
  add("tandem_node_lending_awaited_seconds_total",
      "Time in which the node's steps waited for answers.", counters.lending_awaited_s());
}

void AddStorageRates(const v1::StorageCost& cost, const MetricLabels& labels,
                     MetricRegistry& page) {
  const auto add = [&](const char* tier, const char* direction, const v1::CopyCost& copies) {
    page.AddGauge("tandem_node_storage_bytes_per_second",
                  "The rate of a tier of the node's storage for KV blocks, fitted to its reads or "
                  "writes; 0 while they do not tell one.",
                  With(labels, {{"tier", tier}, {"direction", direction}}))
        .Set(copies.bytes_per_second());
  };
  const char* lowest = cost.in_memory() ? "host" : "disk";
  add(lowest, "read", cost.read());
  add(lowest, "write", cost.write());
  if (!cost.has_host_read()) return;
  add("host", "read", cost.host_read());
  add("host", "write", cost.host_write());
}

void AddTier(const char* tier, const v1::TierTotals& totals, const MetricLabels& labels,
             MetricRegistry& page) {
  const auto count = [&](const char* name, const char* help, int64_t value) {
    page.AddCounter(name, help, With(labels, {{"tier", tier}})).Add(static_cast<double>(value));
  };
  count("tandem_node_tier_hits_total",
        "KV blocks that the node has read from this tier of its storage and not computed.",
        totals.blocks_read());
  count("tandem_node_tier_read_bytes_total",
        "Bytes that the node has read from this tier of its storage.", totals.bytes_read());
  count("tandem_node_tier_writes_total",
        "KV blocks that the node has copied into this tier of its storage when they were sealed.",
        totals.blocks_written());
}

// Where the node got the KV of its prompts' tokens from; the sources add up to all of them.
void AddSources(const v1::TokensBySource& tokens, const MetricLabels& labels,
                MetricRegistry& page) {
  const auto count = [&](const char* source, double value) {
    page.AddCounter("tandem_node_prompt_tokens_total",
                    "Prompt tokens of the node, by where their KV came from.",
                    With(labels, {{"source", source}}))
        .Add(value);
  };
  const auto host = static_cast<double>(tokens.from_host_memory());
  const auto disk = static_cast<double>(tokens.from_disk());
  const auto fetched = static_cast<double>(tokens.fetched());
  count("computed", static_cast<double>(tokens.computed()));
  count("received", static_cast<double>(tokens.received()));
  count("blocks", std::max(0.0, static_cast<double>(tokens.cached()) - host - disk - fetched));
  count("host", host);
  count("disk", disk);
  count("fetched", fetched);
}

void AddCounters(const v1::NodeStatus& node, const MetricLabels& labels, MetricRegistry& page) {
  const v1::NodeCounters& counters = node.counters();
  const auto count = [&](const char* name, const char* help, int64_t value) {
    page.AddCounter(name, help, labels).Add(static_cast<double>(value));
  };
  count("tandem_node_kv_refused_total",
        "What the node's KV plane refused: connections and messages of strangers, and frames that "
        "fail a check.",
        counters.kv_connections_refused() + counters.kv_messages_dropped() +
            counters.kv_frames_rejected());
  count("tandem_node_kv_untimely_frames_total",
        "KV frames that the node dropped because their lease was not known yet, or over.",
        counters.kv_frames_untimely());
  count("tandem_node_kv_sent_bytes_total", "KV that the node has sent to others.",
        counters.kv_bytes_sent());
  count("tandem_node_kv_received_bytes_total", "KV that others have sent to the node.",
        counters.kv_bytes_received());
  count("tandem_node_computed_prompt_tokens_total", "Prompt tokens that the node has computed.",
        counters.prompt_tokens().computed());
  AddSources(counters.prompt_tokens(), labels, page);
  count("tandem_node_fetched_blocks_total",
        "KV blocks of prompts' beginnings that the node has fetched and not computed.",
        counters.blocks_fetched());
  count("tandem_node_fetched_part_tokens_total",
        "Tokens of blocks that are not full, fetched beside those blocks.",
        counters.part_tokens_fetched());
  count("tandem_node_fetches_failed_total",
        "Beginnings of prompts that the node could not fetch, and computed.",
        counters.fetches_failed());
  count("tandem_node_saved_blocks_total",
        "KV blocks that the node has stored in host memory or on disk.", counters.blocks_saved());
  count("tandem_node_loaded_blocks_total",
        "KV blocks of prompts' beginnings that the node has read from storage and not computed.",
        counters.blocks_loaded());
  AddTier("host", counters.host_memory(), labels, page);
  AddTier("disk", counters.disk(), labels, page);
  count("tandem_node_storage_failures_total",
        "KV blocks that the node could not store or read (the disk was full, damaged or slow).",
        counters.blocks_damaged() + counters.saves_failed() + counters.loads_given_up());
  AddLendingCounters(counters, labels, page);
  AddLendingQuestions(counters, labels, page);
  count("tandem_node_generated_tokens_total", "Tokens that the node has generated.",
        counters.generated_tokens());
  count("tandem_node_preemptions_total", "Sequences that lost their blocks to others.",
        counters.preemptions());
  if (node.has_storage_cost()) AddStorageRates(node.storage_cost(), labels, page);
  if (!node.has_step_cost()) return;
  const v1::StepCost& cost = node.step_cost();
  count("tandem_node_steps_measured_total", "Engine steps that the node's cost model has used.",
        cost.samples());
  page.AddCounter("tandem_node_step_seconds_total", "What the measured engine steps took.", labels)
      .Add(cost.actual_us() / 1e6);
  page.AddCounter("tandem_node_step_predicted_seconds_total",
                  "What the cost model predicted for the measured engine steps, each beforehand.",
                  labels)
      .Add(cost.predicted_us() / 1e6);
  page.AddGauge("tandem_node_step_error_ratio",
                "Median relative error of the cost model's recent predictions.", labels)
      .Set(cost.median_relative_error());
}

// By RefusalReason.
std::array<Counter*, 3> AddRefusals(const MetricLabels& labels, MetricRegistry& registry) {
  const auto refused = [&](const char* reason) {
    return &registry.AddCounter(
        "tandem_requests_refused_total",
        "Requests that were not taken on: the router is overloaded, or the client's error is "
        "RESOURCE_EXHAUSTED (exhausted) or UNAVAILABLE (unavailable). Without those beyond a "
        "tenant's quota, and those to a router that drains.",
        With(labels, {{"reason", reason}}));
  };
  return {refused("overload"), refused("exhausted"), refused("unavailable")};
}

}  // namespace

RequestMetrics::Pair RequestMetrics::CounterPair(const char* ours, const char* alias,
                                                 const char* help, MetricLabels labels) {
  labels = With(model_label_, labels);
  return {&registry_.AddCounter(ours, help, labels), &registry_.AddCounter(alias, help, labels)};
}

RequestMetrics::HistogramPair RequestMetrics::AddHistograms(const char* ours, const char* alias,
                                                            const char* help,
                                                            std::vector<double> bounds) {
  return {&registry_.AddHistogram(ours, help, bounds, model_label_),
          &registry_.AddHistogram(alias, help, bounds, model_label_)};
}

RequestMetrics::RequestMetrics(const std::string& model, const ServiceTiers& tiers)
    : model_label_({{"model_name", model}}) {
  for (const auto& tier : tiers.all())
    by_tier_.emplace(tier->name, TierMetrics(*tier, registry_, model_label_));
  prompt_tokens_ = CounterPair("tandem_prompt_tokens_total", "vllm:prompt_tokens_total",
                               "Prompt tokens of finished requests.");
  output_tokens_ = CounterPair("tandem_output_tokens_total", "vllm:generation_tokens_total",
                               "Generated tokens.");
  cached_tokens_ = CounterPair("tandem_cached_prompt_tokens_total", "vllm:prefix_cache_hits_total",
                               "Prompt tokens that no node had to compute.");
  cache_queries_ =
      CounterPair("tandem_cacheable_prompt_tokens_total", "vllm:prefix_cache_queries_total",
                  "Prompt tokens looked up in prefix caches.");
  const auto ended = [this](const char* reason) {
    return CounterPair(
        "tandem_requests_finished_total", "vllm:request_success_total",
        "Requests that were taken on and have ended, by the reason; abort also counts "
        "requests whose clients left before.",
        {{"finished_reason", reason}});
  };
  stopped_ = ended("stop");
  length_ = ended("length");
  aborted_ = ended("abort");
  failed_ = ended("error");
  refused_ = AddRefusals(model_label_, registry_);
  wait_s_ = &registry_.AddHistogram(
      "tandem_router_wait_seconds",
      "What requests had waited, and would have to wait, for the router to have time for them.",
      SecondsBounds(), model_label_);
  first_token_s_ = AddHistograms("tandem_first_token_seconds", "vllm:time_to_first_token_seconds",
                                 "From the request to its first token.", SecondsBounds());
  between_tokens_s_ =
      AddHistograms("tandem_between_tokens_seconds", "vllm:inter_token_latency_seconds",
                    "Between an answer's tokens.", SecondsBounds());
  total_s_ = AddHistograms("tandem_request_seconds", "vllm:e2e_request_latency_seconds",
                           "From the request to its end.", SecondsBounds());
  queue_s_ = AddHistograms("tandem_queue_seconds", "vllm:request_queue_time_seconds",
                           "From when the router's core takes a request on to the placement that "
                           "gave the first token of the answer that was placed first.",
                           SecondsBounds());
  AddPredictions();
  const auto kv_seconds = [this](const char* name, const char* help) {
    return &registry_.AddHistogram(name, help, TransferBounds(), model_label_);
  };
  kv_wire_s_ = kv_seconds("tandem_kv_wire_seconds",
                          "Of a KV transfer, the time during which KV was being received.");
  kv_hidden_s_ =
      kv_seconds("tandem_kv_hidden_seconds", "Of that time, the part before the prefill was over.");
  kv_beyond_s_ = kv_seconds("tandem_kv_beyond_seconds",
                            "From the end of the prefill to installed KV, without the time during "
                            "which KV was being received.");
  prompt_size_ = AddHistograms("tandem_prompt_tokens", "vllm:request_prompt_tokens",
                               "Prompt tokens of a request.", TokenBounds());
  output_size_ = AddHistograms("tandem_output_tokens", "vllm:request_generation_tokens",
                               "Generated tokens of a request.", TokenBounds());
}

void RequestMetrics::AddPredictions() {
  first_token_predicted_s_ = &registry_.AddCounter(
      "tandem_first_token_predicted_seconds_total",
      "What the router predicted for first tokens, each from its request's placement.",
      model_label_);
  first_token_measured_s_ = &registry_.AddCounter(
      "tandem_first_token_measured_seconds_total",
      "What those first tokens took, each from its request's placement.", model_label_);
  first_token_ratio_ = &registry_.AddHistogram("tandem_first_token_measured_to_predicted_ratio",
                                               "What a first token took, over its prediction.",
                                               RatioBounds(), model_label_);
}

void RequestMetrics::OnFirstToken(absl::Duration since_submit) {
  first_token_s_.Record(absl::ToDoubleSeconds(since_submit));
}

void RequestMetrics::OnTokens(int64_t tokens, absl::Duration since_last) {
  output_tokens_.Add(static_cast<double>(tokens));
  if (since_last > absl::ZeroDuration()) {
    between_tokens_s_.Record(absl::ToDoubleSeconds(since_last) / static_cast<double>(tokens));
  }
}

void RequestMetrics::OnFinished(const v1::Finished& finished) {
  const v1::Usage& usage = finished.usage();
  prompt_tokens_.Add(usage.prompt_tokens());
  cache_queries_.Add(usage.prompt_tokens());
  cached_tokens_.Add(usage.cached_tokens());
  // Of the answers to one prompt, one has its tokens.
  if (usage.prompt_tokens() > 0) prompt_size_.Record(usage.prompt_tokens());
  output_size_.Record(usage.output_tokens());
}

void RequestMetrics::OnSequence(const v1::Route& route, const v1::Timing& timing) {
  if (const double predicted_ms = timing.first_token_predicted_ms(); predicted_ms > 0) {
    const double measured_ms = timing.first_token_ms() - timing.queue_ms();
    first_token_predicted_s_->Add(predicted_ms / 1000);
    first_token_measured_s_->Add(measured_ms / 1000);
    first_token_ratio_->Record(measured_ms / predicted_ms);
  }
  if (route.kv_bytes_moved() > 0) {
    kv_wire_s_->Record(route.kv_receive_ms() / 1000);
    kv_hidden_s_->Record(route.kv_hidden_ms() / 1000);
    kv_beyond_s_->Record(route.kv_beyond_ms() / 1000);
  }
}

void RequestMetrics::OnRequestFinished(v1::FinishReason reason, absl::Duration queued,
                                       absl::Duration since_submit) {
  total_s_.Record(absl::ToDoubleSeconds(since_submit));
  queue_s_.Record(absl::ToDoubleSeconds(queued));
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return stopped_.Add(1);
    case v1::FINISH_REASON_LENGTH:
      return length_.Add(1);
    case v1::FINISH_REASON_ABORTED:
      return aborted_.Add(1);
    default:
      return failed_.Add(1);
  }
}

RequestMetrics::Totals RequestMetrics::totals() const {
  return {.requests = stopped_.ours->value() + length_.ours->value() + aborted_.ours->value() +
                      failed_.ours->value(),
          .prompt_tokens = prompt_tokens_.ours->value(),
          .cached_tokens = cached_tokens_.ours->value(),
          .output_tokens = output_tokens_.ours->value()};
}

void RequestMetrics::OnFailed() { failed_.Add(1); }

int64_t RequestMetrics::refused() const {
  double sum = 0;
  for (const Counter* counter : refused_) sum += counter->value();
  return static_cast<int64_t>(sum);
}

std::string RequestMetrics::Text(const v1::GetStatusResponse& status,
                                 const HttpGauges& http) const {
  MetricRegistry page;
  const auto add = [&](const char* name, const char* help, double value,
                       const MetricLabels& labels = {}) {
    page.AddGauge(name, help, labels).Set(value);
  };
  const v1::RouterStatus& router = status.router();
  const auto running = static_cast<double>(router.requests_running());
  const auto queued = static_cast<double>(router.requests_queued());
  add("tandem_requests_running", "Requests placed on nodes.", running, model_label_);
  add("vllm:num_requests_running", "Requests placed on nodes.", running, model_label_);
  add("tandem_requests_queued", "Requests waiting for a place.", queued, model_label_);
  add("vllm:num_requests_waiting", "Requests waiting for a place.", queued, model_label_);
  add("tandem_http_connections", "Open HTTP connections.", static_cast<double>(http.connections));
  add("tandem_http_buffer_bytes",
      "Bytes of HTTP requests that have not arrived whole and of answers that are not read.",
      static_cast<double>(http.buffer_bytes));
  add("tandem_index_blocks",
      "Entries of the prefix index: pairs of a block and a node that holds it.",
      static_cast<double>(router.index_blocks()));
  add("tandem_quota_routers", "Other routers that tenants' quotas are divided with.",
      static_cast<double>(http.quota_routers));
  page.AddCounter(
          "tandem_http_buffers_refused_total",
          "Requests and answers that were ended because such bytes had used up their bound.")
      .Add(static_cast<double>(http.buffers_refused));
  page.AddCounter(
          "tandem_audit_lines_lost_total",
          "Lines of the audit log that were lost: the file took none for too long, or there "
          "were too many about strangers.")
      .Add(static_cast<double>(http.audit_lost));
  page.AddCounter("tandem_fleet_streams_refused_total",
                  "Streams to the fleet's port that were no node's.")
      .Add(static_cast<double>(router.fleet_streams_refused()));
  add("tandem_uptime_seconds", "Since this router started.", status.uptime_s());
  double used = 0, total = 0;
  for (const v1::NodeStatus& node : status.nodes()) {
    const MetricLabels labels = {{"node", node.node_id()}, {"role", node.role()}};
    add("tandem_node_ready", "1 while the node takes work.", node.state() == "ready" ? 1 : 0,
        labels);
    // The last report of a lost node no longer holds.
    if (node.state() == "lost") continue;
    AddLoad(node, labels, page);
    AddCounters(node, labels, page);
    if (node.role() != "decode") continue;
    used += static_cast<double>(node.load().blocks_used());
    total += static_cast<double>(node.load().blocks_total());
  }
  add("vllm:kv_cache_usage_perc", "Share of the decode nodes' KV blocks in use; 1 = all.",
      total > 0 ? used / total : 0, model_label_);
  return absl::StrCat(registry_.Text(), page.Text());
}

}  // namespace tandem::router
