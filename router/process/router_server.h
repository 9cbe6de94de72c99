// The shell around a RouterCore: the core's strand, the service for clients and the service for
// nodes.
//   the core's strand   runs the core: inbox → core → commands to node streams and events to client
//                       sessions. The thread that pushes an item runs it if no other thread does,
//                       else the thread that does; the router's own thread runs the ticks
//                       (docs/adr/0030-the-pushing-thread-runs-the-core.md)
//   gRPC threads        parse, tokenize, push into the inbox; write what sessions queue
//   HTTP threads        the same for HTTP (router/front_end/http/)
//   constraints thread  compiles constraints that requests bring, then submits those requests
// Thread safety: public methods from any thread; Start and the destructor by the owner.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/fleet_tls.h"
#include "common/rpc/tls.h"
#include "router/core/router_options.h"
#include "router/core/service_tiers.h"
#include "router/front_end/api_keys.h"
#include "router/front_end/load_shedder.h"
#include "router/front_end/model_assets.h"

namespace tandem::router {

struct RouterServerOptions {
  std::string grpc_address = "127.0.0.1:50051";   // clients
  std::string fleet_address = "127.0.0.1:50052";  // nodes
  // The OpenAI-compatible HTTP API, host:port; empty = none.
  std::string http_address;
  std::string admin_address;  // what operators ask for over HTTP, host:port; empty = no such port
  int http_threads = 2;
  int64_t http_buffer_bytes = int64_t{512} << 20;  // see BufferBudget
  std::string api_keys;  // a file, see router/front_end/api_keys.h; empty = no key is needed
  int64_t wrong_keys = kWrongKeysInARow;
  rpc::TlsFiles tls;       // of the clients' gRPC and HTTP ports; none: plain text
  bool reflection = true;  // of both gRPC ports
  std::vector<std::string> allowed_origins;  // origins whose pages may call the HTTP API; "*" = any
  int64_t stored_responses_max = 1024;       // by /v1/responses, for later requests that name them
  std::string fleet_secret;                  // that nodes must hold; empty = any node may join
  std::optional<rpc::FleetTls> fleet_tls;    // of the nodes' port; none: plain text
  RouterOptions core;
  // Of requests; the default tier is `core`.default_tier.
  ServiceTiers service_tiers;
  LoadShedder::Options overload;
  int64_t inbox_max = 65536;
  int64_t traces_max = 1024;  // finished requests whose timing is kept for GetTrace
  bool access_log = false;    // one line for each request that ends
  std::string audit_log;      // a file, see router/front_end/audit_log.h; empty = none
  absl::Duration throughput_every = absl::ZeroDuration();  // of the throughput line; 0 = none
};

class RouterServer {
 public:
  // Binds the ports and starts all threads. kUnavailable, naming the address that cannot be bound;
  // kInvalidArgument, naming a file of `tls`, `api_keys` or `audit_log` that cannot be used.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(const RouterServerOptions& options,
                                                             std::unique_ptr<ModelAssets> assets);
  // Ends all streams and threads.
  virtual ~RouterServer() = default;

  virtual const std::string& grpc_address() const = 0;
  virtual const std::string& fleet_address() const = 0;
  // Empty when HTTP is not served.
  virtual std::string http_address() const = 0;
  // Empty when operators have no port of their own.
  virtual std::string admin_address() const = 0;
  // Refreshes readiness (serving means a decode node is ready), and the API keys if their file has
  // changed. Call every second or so.
  virtual void Watch() = 0;
  // Refuses new requests and waits for running ones, at most `timeout`. True when none was cut off.
  virtual bool Drain(absl::Duration timeout) = 0;
};

}  // namespace tandem::router
