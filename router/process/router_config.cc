#include "router/process/router_config.h"

namespace tandem::router {

namespace {

void RegisterIdentityAndNetwork(config::Schema& schema, RouterConfig& config) {
  schema.Add("id", &config.id, "Name of this router.", {.group = "Identity"});
  schema.Add("grpc", &config.grpc, "Address for clients, port or host:port; port 0 picks one.",
             {.group = "Network", .normalise = config::CompleteAddress});
  schema.Add("fleet", &config.fleet,
             "Address where nodes join, port or host:port; port 0 picks one.",
             {.group = "Network", .normalise = config::CompleteAddress});
  schema.Add("http", &config.http,
             "Address of the OpenAI-compatible HTTP API, port or host:port; empty = none.",
             {.group = "Network"});
  schema.Add("http-threads", &config.http_threads, "Threads that serve HTTP.",
             {.min = 1, .max = 64, .group = "Network"});
  schema.Add("api-keys", &config.api_keys,
             "File of hashed keys that clients must have one of; empty = none needed.",
             {.group = "Network"});
  schema.Add(
      "tls-cert", &config.tls.certificate,
      "For TLS where clients ask (gRPC and HTTP): file of the certificate and what leads from "
      "it to its authority's, PEM; empty = no TLS. Read again when it changes.",
      {.group = "Network"});
  schema.Add("tls-key", &config.tls.key, "File of the key of --tls-cert, PEM.",
             {.group = "Network"});
  schema.Add("allowed-origins", &config.allowed_origins,
             "Origins whose pages may call the HTTP API from a browser, such as "
             "https://chat.example; * = any, empty = none.",
             {.group = "Network"});
}

}  // namespace

void RegisterRouterConfig(config::Schema& schema, RouterConfig& config) {
  config::RegisterCommonOptions(schema, config.common);
  RegisterIdentityAndNetwork(schema, config);
  schema.Add("served-model-name", &config.served_model_name,
             "Names that clients may call the model by; the first is what they are told. Default: "
             "`model`, without folder and ending.",
             {.group = "Model"});
  schema.Add("local-prefill-tokens", &config.core.local_prefill_tokens_max,
             "A decode node computes prompts itself whose uncached part is at most this long.",
             {.min = 0, .unit = "tokens", .group = "Placement"});
  schema.Add("attempts", &config.core.attempts_max, "Placements of one request before it fails.",
             {.min = 1, .max = 100, .group = "Placement"});
  schema.Add("index-blocks", &config.core.index_blocks_max, "Bound of the prefix index.",
             {.min = 1, .unit = "blocks", .group = "Placement"});
  schema.Add("allow-mixed-numerics", &config.core.allow_mixed_numerics,
             "Nodes of other numerics may exchange KV; answers are then not reproducible.",
             {.group = "Placement"});
  schema.Add("queue-max", &config.core.queue_max,
             "Requests that may wait for a place; more are refused.",
             {.min = 0, .unit = "requests", .group = "Admission"});
  schema.Add("requests-max", &config.core.requests_max, "Requests in all.",
             {.min = 1, .unit = "requests", .group = "Admission"});
  schema.Add(
      "overload-delay", &config.overload.delay,
      "What requests may wait for the router itself, for --overload-interval, before those are "
      "refused that waited twice as long; 0 = none are.",
      {.group = "Admission"});
  schema.Add("overload-interval", &config.overload.interval,
             "For how long all requests must have waited for --overload-delay.",
             {.group = "Admission"});
  schema.Add("queue-deadline", &config.core.queue_deadline,
             "How long a request may wait for a place.", {.group = "Deadlines"});
  schema.Add("prefill-deadline", &config.core.prefill_deadline,
             "From placement to an installed prompt.", {.group = "Deadlines"});
  schema.Add("token-deadline", &config.core.token_deadline,
             "Between two tokens; then the answer goes on elsewhere.", {.group = "Deadlines"});
  schema.Add("heartbeat-interval", &config.core.heartbeat_interval, "How often nodes report.",
             {.group = "Deadlines"});
  schema.Add("node-lost-after", &config.core.node_lost_after,
             "A node silent for this long is taken for dead.", {.group = "Deadlines"});
  schema.Add("lease-time", &config.core.lease_time,
             "How long a lease outlives the last sign of its router, sender or client.",
             {.group = "Deadlines"});
  schema.Add("responses-kept", &config.responses_kept,
             "Answers of /v1/responses that a later request may name (previous_response_id), at "
             "most 64 MiB of them; 0 = none.",
             {.min = 0, .max = 1000000, .unit = "responses", .group = "Lifecycle"});
  schema.Add("traces", &config.traces,
             "Finished requests whose timing is kept for `tandem trace`; 0 = none.",
             {.min = 0, .max = 1000000, .unit = "requests", .group = "Lifecycle"});
}

}  // namespace tandem::router
