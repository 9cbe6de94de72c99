// The gRPC service that clients call. It parses and tokenizes requests and submits them to the
// core; it decides nothing about them. It looks at a call's key before gRPC reads its message, and
// takes messages as raw bytes, so that it can name the field that is not UTF-8. Thread safety: gRPC
// calls the service on any of its threads; RequireKeys and GuardStatus before serving. Owner:
// RouterServer.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "router/front_end/answer_session.h"
#include "router/front_end/api_keys.h"
#include "router/front_end/grpc/unary_call.h"
#include "router/front_end/status_board.h"
#include "tandem/v1/client.grpc.pb.h"

namespace tandem::router {

// What the nodes that have joined decide of GetModel's answer.
struct ServedFleet {
  std::string numerics_id;  // empty: no node has joined yet
  int64_t context_tokens = 0;
};

class ClientService final : public grpc::Service {
 public:
  // All that `deps` refers to, and `status`, outlive the service. `served`: from any thread, and it
  // must not wait for the core.
  ClientService(const AnswerSession::Deps& deps, StatusBoard& status,
                std::function<ServedFleet()> served);

  // Every call but GetStatus then needs one of `keys`, as over HTTP all but /metrics do. REQUIRES:
  // not serving yet.
  void RequireKeys(ApiKeys* keys) { keys_ = keys; }
  // GetStatus then needs an admin's key, or the operator key of `fleet_secret`. REQUIRES: as
  // RequireKeys.
  void GuardStatus(const std::string& fleet_secret);

 private:
  // Who makes a call, as its metadata say.
  struct Caller {
    std::shared_ptr<Tenant> tenant;  // null: no keys are required, or the call needs none
    std::shared_ptr<AuditCall> audit;
    std::string traceparent;
  };
  // What a call needs: any key; a key with the scope infer, against whose quota it counts; or what
  // GetStatus needs.
  enum class Needs { kKey, kInfer, kStatus };
  struct Method {
    const char* path;
    Needs needs;
    size_t bytes_max;  // of the message; it is not parsed when it is longer
    void (ClientService::*handle)(UnaryCall&);  // null: Generate
  };
  static const Method kMethods[];

  // A call's reactor. A call whose metadata do not suffice is refused, and its message not read.
  ClientReactor* Begin(const Method& method, const grpc::CallbackServerContext& context);
  // Sets the caller's tenant. kUnauthenticated, kPermissionDenied, or FailedKeys' refusal.
  absl::Status Identify(Needs needs, const grpc::CallbackServerContext& context,
                        Caller& caller) const;
  absl::Status CheckMaySeeStatus(const grpc::CallbackServerContext& context, Caller& caller) const;
  // Counts a request of the caller's tenant.
  static absl::Status CountRequest(const std::shared_ptr<Tenant>& tenant);
  // kUnavailable when the router is too overloaded for this call. `resumes`: see LoadShedder.
  absl::Status Shed(absl::FunctionRef<bool()> resumes) const;

  absl::StatusOr<std::shared_ptr<AnswerSession>> Generate(const Caller& caller,
                                                          const grpc::ByteBuffer& bytes,
                                                          std::shared_ptr<AnswerSink> sink) const;
  // A message of so many bytes or less is processed on the thread that read it. None is where it
  // might be a conversation that takes long to render.
  size_t ShortBytesMax() const;
  void Abort(UnaryCall& call);
  void Tokenize(UnaryCall& call);
  void Detokenize(UnaryCall& call);
  void GetModel(UnaryCall& call);
  void GetStatus(UnaryCall& call);
  void GetTrace(UnaryCall& call);
  void ListRequests(UnaryCall& call);

  absl::Status FillTokens(const v1::TokenizeRequest& request, v1::TokenizeResponse& response) const;
  void ReplyWithTokens(UnaryCall& call) const;
  void ReplyWithText(UnaryCall& call) const;
  // Runs `reply`, which ends the call, here for a message of at most `short_bytes_max`, otherwise
  // on a thread for long work.
  void RunByLength(UnaryCall& call, size_t short_bytes_max,
                   void (ClientService::*reply)(UnaryCall&) const) const;
  // Runs `reply`, which ends the call, on the core's strand. `late`: in the low priority class,
  // after requests that wait.
  void RunOnCore(UnaryCall& call, std::function<void(RouterCore&, absl::Time)> reply,
                 bool late = false);

  const AnswerSession::Deps deps_;
  const ModelAssets& assets_;
  Inbox& inbox_;
  StatusBoard& status_;
  const std::function<ServedFleet()> served_;
  ApiKeys* keys_ = nullptr;
  bool guards_status_ = false;
  std::string operator_key_hash_;  // empty without a secret
};

}  // namespace tandem::router
