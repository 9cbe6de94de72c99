#include "router/front_end/grpc/client_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/error_details.h"
#include "common/rpc/operator_key.h"
#include "common/runtime/clock.h"
#include "router/core/router_core.h"
#include "router/front_end/grpc/generate_session.h"
#include "router/front_end/grpc/parse_request.h"
#include "router/front_end/request_validation.h"
#include "router/front_end/trace_parent.h"

namespace tandem::router {

namespace {

// The first value of a call's metadata; empty when absent.
std::string MetadataOf(const grpc::CallbackServerContext& context, const char* name) {
  const auto found = context.client_metadata().find(name);
  if (found == context.client_metadata().end()) return "";
  return std::string(found->second.data(), found->second.size());
}

// The cluster's name of the request that a call of `tenant` (null: no keys) names.
std::string SoughtId(const std::shared_ptr<Tenant>& tenant, const std::string& request_id) {
  return tenant == nullptr ? request_id : tenant->SoughtId(request_id);
}

grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* context,
                                     const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpcWithDetails(status));
  return reactor;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Tenant>> ClientService::Admit(
    const grpc::CallbackServerContext& context) const {
  if (keys_ == nullptr) return nullptr;
  return keys_->AdmitFrom(SourceOfGrpcPeer(context.peer()), MetadataOf(context, "authorization"),
                          RealClock().Now());
}

absl::StatusOr<std::shared_ptr<Tenant>> ClientService::AdmitToInfer(
    const grpc::CallbackServerContext& context) const {
  ASSIGN_OR_RETURN(std::shared_ptr<Tenant> tenant, Admit(context));
  if (tenant != nullptr) RETURN_IF_ERROR(tenant->CheckMayInfer());
  return tenant;
}

void ClientService::GuardStatus(const std::string& fleet_secret) {
  guards_status_ = true;
  // A hash, so that the time of comparing tells nothing of the key.
  if (!fleet_secret.empty())
    operator_key_hash_ = Sha256Hex(absl::StrCat("Bearer ", rpc::OperatorKey(fleet_secret)));
}

absl::Status ClientService::CheckMaySeeStatus(const grpc::CallbackServerContext& context) const {
  if (keys_ == nullptr || !guards_status_) return absl::OkStatus();
  const std::string authorization = MetadataOf(context, "authorization");
  if (Sha256Hex(authorization) == operator_key_hash_) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      const std::shared_ptr<Tenant> tenant,
      keys_->IdentifyFrom(SourceOfGrpcPeer(context.peer()), authorization, RealClock().Now()));
  return tenant->CheckIsAdmin();
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* ClientService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  v1::GenerateRequest request;
  const absl::Status shed =
      Shed([&] { return ParseRequest(*bytes, request).ok() && request.resume_from_token() > 0; });
  if (!shed.ok()) return GenerateSession::Refuse(shed);
  const absl::StatusOr<std::shared_ptr<Tenant>> tenant = AdmitToInfer(*context);
  if (!tenant.ok()) return GenerateSession::Refuse(tenant.status());
  absl::Status status = ParseRequest(*bytes, request);
  if (draining_) status = absl::UnavailableError("this router is draining; ask another");
  if (!status.ok()) return GenerateSession::Refuse(status);
  Arrival arrival{RealClock().Now(), TraceIdOf(MetadataOf(*context, "traceparent")),
                  LoadShedder::FrontEndKind::kGrpc};
  if (*tenant != nullptr) {
    auto call = TenantCall::Begin(*tenant, SequencesOf(request));
    if (!call.ok()) return GenerateSession::Refuse(call.status());
    arrival.call = *std::move(call);
  }
  return GenerateSession::Start(request, arrival, deps_);
}

absl::Status ClientService::Shed(absl::FunctionRef<bool()> resumes) const {
  // How long gRPC has held the call is not known, so its wait so far counts as zero.
  return deps_.shedder.Admit(LoadShedder::FrontEndKind::kGrpc, absl::ZeroDuration(),
                             RealClock().Now(), resumes);
}

grpc::ServerUnaryReactor* ClientService::RunOnCore(
    grpc::CallbackServerContext* context, std::function<void(RouterCore&, absl::Time)> fill,
    bool late) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  CoreCall query{[reactor, fill = std::move(fill)](RouterCore& core, absl::Time now) {
    fill(core, now);
    reactor->Finish(grpc::Status::OK);
  }};
  const bool queued = late ? inbox_.TryPushLow(std::move(query)) : inbox_.TryPush(std::move(query));
  if (!queued) {
    reactor->Finish(rpc::ToGrpcWithDetails(
        absl::UnavailableError("the router's inbox is full, or the router is shutting down")));
  }
  return reactor;
}

grpc::ServerUnaryReactor* ClientService::Abort(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* bytes,
                                               grpc::ByteBuffer* response) {
  v1::AbortRequest request;
  const absl::StatusOr<std::shared_ptr<Tenant>> tenant = Admit(*context);
  absl::Status status = tenant.status();
  if (status.ok()) status = ParseRequest(*bytes, request);
  if (!status.ok()) return FinishWith(context, status);
  *response = SerializeResponse(v1::AbortResponse());
  // In the low priority class: after the request itself, if that still waits.
  return RunOnCore(
      context,
      [id = RequestId(SoughtId(*tenant, request.request_id()))](RouterCore& core, absl::Time now) {
        core.Finish(id, request::FinishReason::kAborted, now);
      },
      /*late=*/true);
}

absl::Status ClientService::FillTokens(const v1::TokenizeRequest& request,
                                       v1::TokenizeResponse& response) const {
  model::Tokenizer::EncodeOptions options;
  options.add_special_tokens = !request.no_special_tokens();
  std::string text = request.text();
  if (request.has_chat()) {
    ASSIGN_OR_RETURN(text, assets_.RenderChat(request.chat(), RealClock().Now()));
    options.add_special_tokens = false;  // the template wrote them
  }
  for (const TokenId id : assets_.tokenizer->Encode(text, options)) response.add_ids(id);
  response.set_rendered(text);
  return absl::OkStatus();
}

absl::Status ClientService::WriteTokens(const grpc::ByteBuffer& bytes,
                                        grpc::ByteBuffer& response) const {
  v1::TokenizeRequest request;
  v1::TokenizeResponse tokens;
  RETURN_IF_ERROR(ParseRequest(bytes, request));
  RETURN_IF_ERROR(FillTokens(request, tokens));
  response = SerializeResponse(tokens);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* ClientService::Tokenize(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* bytes,
                                                  grpc::ByteBuffer* response) {
  absl::Status status = Shed([] { return false; });
  if (status.ok()) status = AdmitToInfer(*context).status();
  if (!status.ok()) return FinishWith(context, status);
  if (bytes->Length() <= LongWork::kShortBytesMax) {
    return FinishWith(context, WriteTokens(*bytes, *response));
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  status = deps_.long_work.Add(bytes->Length(), [this, bytes, response, reactor] {
    reactor->Finish(rpc::ToGrpcWithDetails(WriteTokens(*bytes, *response)));
  });
  if (!status.ok()) reactor->Finish(rpc::ToGrpcWithDetails(status));
  return reactor;
}

grpc::ServerUnaryReactor* ClientService::Detokenize(grpc::CallbackServerContext* context,
                                                    const v1::DetokenizeRequest* request,
                                                    v1::DetokenizeResponse* response) {
  if (const absl::Status shed = Shed([] { return false; }); !shed.ok()) {
    return FinishWith(context, shed);
  }
  const absl::Status admitted = AdmitToInfer(*context).status();
  if (!admitted.ok()) return FinishWith(context, admitted);
  const auto& ids = request->ids();
  const auto bad = std::find_if(ids.begin(), ids.end(), [this](int32_t id) {
    return id < 0 || id >= assets_.identity.vocab_size;
  });
  if (bad != ids.end()) {
    return FinishWith(context, absl::InvalidArgumentError(absl::StrCat(
                                   "ids: token ", *bad, " at index ", bad - ids.begin(),
                                   " is outside the vocabulary of ", assets_.identity.vocab_size)));
  }
  response->set_text(assets_.tokenizer->Decode(std::vector<TokenId>(ids.begin(), ids.end()),
                                               !request->keep_special_tokens()));
  return FinishWith(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ClientService::GetModel(grpc::CallbackServerContext* context,
                                                  const v1::GetModelRequest*,
                                                  v1::GetModelResponse* response) {
  const absl::Status admitted = Admit(*context).status();
  if (!admitted.ok()) return FinishWith(context, admitted);
  response->set_name(assets_.identity.served_name());
  response->set_architecture(assets_.architecture);
  response->set_fingerprint(assets_.identity.fingerprint);
  response->set_vocab_size(assets_.identity.vocab_size);
  for (const TokenId id : assets_.eos_token_ids) response->add_stop_token_ids(id);
  return RunOnCore(context, [response](RouterCore& core, absl::Time) {
    response->set_numerics_id(core.numerics_id());
    response->set_context_tokens(static_cast<int32_t>(core.context_tokens()));
  });
}

grpc::ServerUnaryReactor* ClientService::GetStatus(grpc::CallbackServerContext* context,
                                                   const v1::GetStatusRequest*,
                                                   v1::GetStatusResponse* response) {
  const absl::Status may_see = CheckMaySeeStatus(*context);
  if (!may_see.ok()) return FinishWith(context, may_see);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  status_.Read(RealClock().Now(), [this, reactor, response](const StatusBoard::Status& status) {
    if (status == nullptr)
      return reactor->Finish(rpc::ToGrpcWithDetails(
          absl::UnavailableError("the router's inbox is full, or the router is shutting down")));
    *response = *status;
    response->mutable_router()->set_requests_refused(deps_.shedder.refused());
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* ClientService::GetTrace(grpc::CallbackServerContext* context,
                                                  const v1::GetTraceRequest* request,
                                                  v1::GetTraceResponse* response) {
  const absl::StatusOr<std::shared_ptr<Tenant>> tenant = Admit(*context);
  if (!tenant.ok()) return FinishWith(context, tenant.status());
  absl::StatusOr<v1::RequestTrace> trace =
      deps_.traces.Find(SoughtId(*tenant, request->request_id()));
  if (trace.ok()) {
    *response->mutable_trace() = *std::move(trace);
    response->mutable_trace()->set_request_id(request->request_id());
  }
  return FinishWith(context, trace.status());
}

grpc::ServerUnaryReactor* ClientService::ListRequests(grpc::CallbackServerContext* context,
                                                      const v1::ListRequestsRequest* request,
                                                      v1::ListRequestsResponse* response) {
  const absl::StatusOr<std::shared_ptr<Tenant>> tenant = Admit(*context);
  if (!tenant.ok()) return FinishWith(context, tenant.status());
  if (request->limit() < 0 || request->limit() > RunningQuery::kLimitMax) {
    return FinishWith(context, absl::InvalidArgumentError(absl::StrCat(
                                   "limit: ", request->limit(), ", expected a number in [0, ",
                                   RunningQuery::kLimitMax, "]")));
  }
  RunningQuery query;
  if (request->limit() > 0) query.limit = request->limit();
  // An admin sees the whole names; a tenant its own requests, by the names that it gave them.
  if (*tenant != nullptr && !(*tenant)->limits().is_admin)
    query.id_prefix = (*tenant)->ScopedId("");
  return RunOnCore(
      context,
      [query, response](RouterCore& core, absl::Time now) {
        *response = core.ListRunning(query, now);
        for (v1::RunningRequest& running : *response->mutable_requests())
          running.mutable_request_id()->erase(0, query.id_prefix.size());
      },
      /*late=*/true);
}

}  // namespace tandem::router
