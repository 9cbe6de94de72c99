#include "router/process/router_config.h"

#include "absl/strings/str_cat.h"
#include "common/rpc/server.h"
#include "router/front_end/http/response_store.h"

namespace tandem::router {

namespace {

void RegisterIdentityAndNetwork(config::Schema& schema, RouterConfig& config) {
  schema.Add("id", &config.id, "Name of this router.", {.group = "Identity"});
  schema.Add(
      "grpc", &config.grpc, "Address for clients, port or host:port; port 0 picks one.",
      {.group = "Network", .check = config::CheckAddress, .normalise = config::CompleteAddress});
  schema.Add(
      "fleet", &config.fleet, "Address where nodes join, port or host:port; port 0 picks one.",
      {.group = "Network", .check = config::CheckAddress, .normalise = config::CompleteAddress});
  schema.Add(
      "open-fleet", &config.open_fleet,
      "Nodes may join from other machines without a secret (--fleet-secret-file) and without "
      "TLS (--fleet-tls).",
      {.group = "Network"});
  schema.Add("reflection", &config.reflection,
             "The gRPC ports tell which services they have and what their messages are.",
             {.group = "Network"});
  schema.Add("http", &config.http,
             "Address of the OpenAI-compatible HTTP API, port or host:port; empty = none.",
             {.group = "Network", .check = config::CheckAddressOrNone});
  schema.Add(
      "admin", &config.admin,
      "Address of a port for operators, port or host:port: /metrics, /load, /status, /traces "
      "and POST /drain, for API keys with the scope admin, where there are keys. Clients' "
      "ports then serve none of these. Empty = no such port.",
      {.group = "Network", .check = config::CheckAddressOrNone});
  schema.Add("http-threads", &config.http_threads, "Threads that serve HTTP.",
             {.min = 1, .max = 64, .group = "Network"});
  schema.Add(
      "http-buffer-bytes", &config.http_buffer_bytes,
      "Memory for HTTP requests that have not arrived whole and for answers that their clients "
      "have not read, of all connections together.",
      {.min = 1 << 20, .unit = "bytes", .group = "Network"});
  schema.Add(
      "api-keys", &config.api_keys,
      "File with the hashes of the API keys that clients must send; empty = clients need no key.",
      {.group = "Network"});
  schema.Add("wrong-keys", &config.wrong_keys,
             "Wrong API keys in a row that an address may send before it must wait for each next "
             "one; 0 = it never waits, for a router behind a proxy.",
             {.min = 0, .unit = "keys", .group = "Network"});
  schema.Add("tls-cert", &config.tls.certificate,
             "TLS for clients (gRPC and HTTP): PEM file with the certificate and its chain; empty "
             "= no TLS. The router reads it again when it changes.",
             {.group = "Network"});
  schema.Add("tls-key", &config.tls.key, "PEM file with the private key of --tls-cert.",
             {.group = "Network"});
  schema.Add("tls-client-ca", &config.tls.client_authorities,
             "PEM file with authorities: clients must show a certificate that one of them signed, "
             "on every port for clients and operators. Empty = clients show none.",
             {.group = "Network"});
  schema.Add("allowed-origins", &config.allowed_origins,
             "Web origins whose pages may call the HTTP API, such as https://chat.example; * = "
             "any, empty = none. Without API keys their hosts are also names by which the router "
             "may be called.",
             {.group = "Network"});
}

// What the router keeps and logs of its requests.
void RegisterRecords(config::Schema& schema, RouterConfig& config) {
  schema.Add("responses-kept", &config.stored_responses_max,
             "Answers of /v1/responses that the router stores for later requests "
             "(previous_response_id), at most 64 MiB; 0 = none.",
             {.min = 0, .max = 1000000, .unit = "responses", .group = "Lifecycle"});
  schema.Add("traces", &config.traces,
             "Finished requests whose timing the router stores for `tandem trace`; 0 = none.",
             {.min = 0, .max = 1000000, .unit = "requests", .group = "Lifecycle"});
  schema.Add("access-log", &config.access_log,
             "Log one line for each request when it ends: ids, nodes, times, tokens, never text. "
             "The router waits while its log is not read.",
             {.group = "Lifecycle"});
  schema.Add("audit-log", &config.audit_log,
             "File to which the router appends a line of JSON for each call, refused key and "
             "operator's action: who, what, from where, with which result; never text. Empty = "
             "none.",
             {.group = "Lifecycle"});
  schema.Add("throughput-every", &config.throughput_every,
             "How often the router logs requests and tokens per second while it has work; 0 = "
             "never.",
             {.min = absl::ZeroDuration(), .group = "Lifecycle"});
}

void RegisterDeadlines(config::Schema& schema, RouterConfig& config) {
  schema.Add("queue-deadline", &config.core.queue_deadline,
             "How long a request may wait for placement.",
             {.min = absl::Milliseconds(1), .group = "Deadlines"});
  schema.Add("prefill-deadline", &config.core.prefill_deadline,
             "Longest time from placement to an installed prompt.",
             {.min = absl::Milliseconds(1), .group = "Deadlines"});
  schema.Add("prefill-wait", &config.core.prefill_wait_max,
             "A prompt waits in the router's queue while every prefill node is predicted to need "
             "longer than this before it begins with it; 0 = prompts wait in prefill nodes.",
             {.min = absl::ZeroDuration(), .group = "Deadlines"});
  schema.Add(
      "ttft-slo", &config.core.default_tier.ttft_slo,
      "Goal for the time to first token. A request that cannot meet it any more waits behind "
      "those that can, at most for --queue-deadline; 0 = all wait in the order of arrival.",
      {.min = absl::ZeroDuration(), .group = "Deadlines"});
  schema.AddEnum(
      "late", &config.core.default_tier.late,
      "What becomes of a request that is predicted to miss --ttft-slo because others are "
      "before it: serve = it waits behind those that can be in time; refuse = it is "
      "refused at once, with the time after which to ask again.",
      {kLatePolicies.begin(), kLatePolicies.end()}, "Deadlines");
  schema.Add("gap-slo", &config.core.default_tier.gap_slo,
             "Goal for the time between two tokens. A request waits while every decode node's step "
             "is predicted to take longer than this with it; 0 = steps may take any time.",
             {.min = absl::ZeroDuration(), .group = "Deadlines"});
  schema.Add("service-tiers", &config.service_tiers,
             "Service tiers that requests may name (`service_tier`), each with goals of its own: "
             "NAME [ttft=DURATION] [gap=DURATION] [late=serve|refuse] [priority=N], separated by "
             "commas. What one leaves out is as --ttft-slo, --gap-slo and --late say, which are "
             "the goals of the tier `default`. Nodes are told when a first token is due, and "
             "compute what is due first before the rest (--queue-order).",
             {.group = "Deadlines"});
  schema.Add("token-deadline", &config.core.token_deadline,
             "Longest time between two tokens; after it another node continues the answer. A node "
             "that lacks memory says twice a second which answers wait for it: their time begins "
             "anew.",
             {.min = absl::Milliseconds(1), .group = "Deadlines"});
  schema.Add("heartbeat-interval", &config.core.heartbeat_interval, "How often nodes report.",
             {.min = absl::Milliseconds(1), .group = "Deadlines"});
  schema.Add("node-lost-after", &config.core.node_lost_after,
             "The router takes a node for dead when it hears nothing from it for this long, which "
             "is longer than --heartbeat-interval.",
             {.min = absl::Milliseconds(1), .group = "Deadlines"});
}

void RegisterModel(config::Schema& schema, RouterConfig& config) {
  schema.Add("served-model-name", &config.served_model_name,
             "Names that clients may use for the model; answers name the first. Default: the last "
             "part of `model` without its ending.",
             {.group = "Model"});
  schema.Add("chat-template", &config.chat_template,
             "File with the Jinja template that makes prompts of conversations, in place of the "
             "model's own. Empty = the model's own.",
             {.group = "Model"});
}

}  // namespace

void RegisterRouterConfig(config::Schema& schema, RouterConfig& config) {
  config::RegisterCommonOptions(schema, config.common);
  RegisterIdentityAndNetwork(schema, config);
  RegisterModel(schema, config);
  schema.Add(
      "local-prefill-tokens", &config.core.local_prefill_tokens_max,
      "A decode node computes a prompt itself if at most this many of its tokens are not cached; 0 "
      "= never. With --placement=cost the predicted cost decides for each prompt; up to this many "
      "tokens it counts only the sequences that run there.",
      {.min = 0, .unit = "tokens", .group = "Placement"});
  schema.Add(
      "fetch-tokens", &config.core.fetch_tokens_min,
      "The node that computes a prompt fetches its beginning from a node that holds at least this "
      "many tokens more of it, where that is predicted to take less time than computing them; "
      "0 = never.",
      {.min = 0, .unit = "tokens", .group = "Placement"});
  schema.Add("attempts", &config.core.attempts_max,
             "How often the router places one request before the request fails.",
             {.min = 1, .max = 100, .group = "Placement"});
  std::vector<std::pair<std::string, PlacementPolicy>> policies;
  for (const auto& [name, policy] : kPlacementPolicies) policies.emplace_back(name, policy);
  schema.AddEnum(
      "placement", &config.core.placement,
      "How requests are placed. `cost` takes the least predicted time; `affinity` weighs "
      "prefixes, queues and free blocks; the others choose by one criterion, to compare "
      "with.",
      policies, "Placement");
  schema.Add(
      "index-blocks", &config.core.index_blocks_max,
      "Most entries of the prefix index: pairs of a KV block and a node; up to 46 bytes each.",
      {.min = 1, .unit = "blocks", .group = "Placement"});
  schema.Add("allow-mixed-numerics", &config.core.allow_mixed_numerics,
             "Nodes of different numerics ids may exchange KV; answers are then not reproducible.",
             {.group = "Placement"});
  schema.Add("queue-max", &config.core.queue_max,
             "Most sequences that wait for placement. The router refuses more, or ends waiting "
             "requests of the tenant that has most for its weight.",
             {.min = 0, .unit = "sequences", .group = "Admission"});
  schema.Add("priority-level", &config.core.priority_level,
             "Waiting time that one level of priority is worth in the queue.",
             {.min = absl::ZeroDuration(), .group = "Admission"});
  schema.Add("requests-max", &config.core.requests_max,
             "Most sequences, running and waiting; a request of n answers counts n.",
             {.min = 1, .unit = "sequences", .group = "Admission"});
  schema.Add("request-bytes-max", &config.core.request_bytes_max,
             "Most memory that running and waiting requests may come to hold: prompts, constraints "
             "and answers.",
             {.min = 1 << 20, .unit = "bytes", .group = "Admission"});
  schema.Add("overload-delay", &config.overload.delay,
             "When all requests of the last --overload-interval waited longer than this for the "
             "router itself, it refuses those that waited twice as long; 0 = it refuses none.",
             {.min = absl::ZeroDuration(), .group = "Admission"});
  schema.Add("overload-interval", &config.overload.interval,
             "The interval that --overload-delay looks at.",
             {.min = absl::Milliseconds(1), .group = "Admission"});
  RegisterDeadlines(schema, config);
  RegisterRecords(schema, config);
}

int64_t MemoryBoundBytes(const RouterConfig& config) {
  int64_t bytes = config.core.request_bytes_max + rpc::kClientLimits.memory_bytes_max;
  if (config.http.empty()) return bytes;
  // Answers to batches of prompts may hold as much as requests do.
  bytes += config.core.request_bytes_max + config.http_buffer_bytes;
  return bytes + (config.stored_responses_max > 0 ? ResponseStore::Options().bytes_max : 0);
}

std::string MemoryWarning(const RouterConfig& config, std::optional<int64_t> limit_bytes) {
  const int64_t bound = MemoryBoundBytes(config);
  if (!limit_bytes.has_value() || bound <= *limit_bytes) return "";
  return absl::StrCat("clients may make this router hold ", bound >> 20,
                      " MiB, and its control group allows ", *limit_bytes >> 20,
                      " MiB: expected a higher limit, or lower --request-bytes-max",
                      config.http.empty() ? "" : " and --http-buffer-bytes");
}

}  // namespace tandem::router
