// The server that a load is sent to: any OpenAI-compatible server over HTTP, or Tandem over gRPC.
// Thread safety: none; the thread that runs the io_context, which also calls the observers.
// Owner: the bench serve command.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/bench_serve/event_stream.h"
#include "cli/bench_serve/workload.h"
#include "common/rpc/tls.h"

namespace tandem::cli {

struct TargetAddress {
  bool grpc = false;
  bool tls = false;  // of HTTP
  std::string host;
  std::string port;
  std::string path;  // before /v1, such as "" or "/proxy"

  std::string text() const;  // "http://host:port/path"
};
// "http://host:port", "https://host:port", "grpc://host:port", "host:port" (HTTP); a path that ends
// in /v1 is taken as OpenAI's base URL. kInvalidArgument says what is wrong.
absl::StatusOr<TargetAddress> ParseTarget(absl::string_view text);

struct TargetOptions {
  TargetAddress address;
  std::string model;  // empty: whatever the server has
  std::string api_key;
  // No authorities: no TLS over gRPC, "system" over HTTP.
  rpc::TlsTrust tls;
  double temperature = 0;
  bool chat = false;       // /v1/chat/completions; HTTP only
  bool ignore_eos = true;  // answers are as long as they were asked to be
};

// Receives the progress of one request. Times are those at which bytes were read.
class AnswerObserver {
 public:
  virtual ~AnswerObserver() = default;
  virtual void OnText(absl::Time at) = 0;
  virtual void OnUsage(const AnswerUsage& usage) = 0;
  // Called once, last. `error`: its kind, empty when the answer is complete; `message`: the
  // server's or the system's text.
  virtual void OnEnd(absl::Time at, const std::string& error, const std::string& message) = 0;
};

// A request in flight; destroying the object does not end the request.
class LoadCall {
 public:
  virtual ~LoadCall() = default;
  // The observer's OnEnd follows soon, if it was not called yet.
  virtual void Cancel() = 0;
};

class LoadTarget {
 public:
  virtual ~LoadTarget() = default;
  // Sends `request`; `observer` outlives its OnEnd, which is never called from inside Start.
  virtual std::shared_ptr<LoadCall> Start(const LoadRequest& request, AnswerObserver& observer) = 0;
  virtual const std::string& model() const = 0;
  // How many tokens the server makes of `text`; kUnimplemented when it does not say.
  virtual absl::StatusOr<int64_t> CountTokens(const std::string& text) = 0;
};

// Both ask the server for its model first, so that a missing server is noticed before the load.
// kUnavailable names the address.
absl::StatusOr<std::unique_ptr<LoadTarget>> NewHttpTarget(const TargetOptions& options,
                                                          boost::asio::io_context& context);
absl::StatusOr<std::unique_ptr<LoadTarget>> NewGrpcTarget(const TargetOptions& options,
                                                          boost::asio::io_context& context);

}  // namespace tandem::cli
