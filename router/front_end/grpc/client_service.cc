#include "router/front_end/grpc/client_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/operator_key.h"
#include "common/rpc/server.h"
#include "common/runtime/clock.h"
#include "router/core/router_core.h"
#include "router/front_end/grpc/generate_session.h"
#include "router/front_end/grpc/parse_request.h"
#include "router/front_end/inbox.h"
#include "router/front_end/request_validation.h"
#include "router/front_end/trace_parent.h"

namespace tandem::router {

namespace {

// What a call's message may have. A long one is parsed in its turn, beside others (RunByLength,
// GenerateSession); a short one holds an id or a number, and is parsed on gRPC's thread.
constexpr size_t kLongBytesMax = rpc::kClientMessageBytesMax;
constexpr size_t kShortBytesMax = 4 << 10;

using RawHandler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;

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

}  // namespace

const ClientService::Method ClientService::kMethods[] = {
    {"/tandem.v1.Tandem/Generate", Needs::kInfer, kLongBytesMax, nullptr},
    {"/tandem.v1.Tandem/Abort", Needs::kKey, kShortBytesMax, &ClientService::Abort},
    {"/tandem.v1.Tandem/Tokenize", Needs::kInfer, kLongBytesMax, &ClientService::Tokenize},
    {"/tandem.v1.Tandem/Detokenize", Needs::kInfer, kLongBytesMax, &ClientService::Detokenize},
    {"/tandem.v1.Tandem/GetModel", Needs::kKey, kShortBytesMax, &ClientService::GetModel},
    {"/tandem.v1.Tandem/GetStatus", Needs::kStatus, kShortBytesMax, &ClientService::GetStatus},
    {"/tandem.v1.Tandem/GetTrace", Needs::kKey, kShortBytesMax, &ClientService::GetTrace},
    {"/tandem.v1.Tandem/ListRequests", Needs::kKey, kShortBytesMax, &ClientService::ListRequests},
};

// Every method is a stream to gRPC: of other methods it reads the first message before it calls the
// service.
ClientService::ClientService(const AnswerSession::Deps& deps, StatusBoard& status,
                             std::function<ServedFleet()> served)
    : deps_(deps),
      assets_(deps.assets),
      inbox_(deps.inbox),
      status_(status),
      served_(std::move(served)) {
  int index = 0;
  for (const Method& method : kMethods) {
    // The server's base class takes both over.
    AddMethod(std::make_unique<grpc::internal::RpcServiceMethod>(
                  method.path, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr)
                  .release());
    auto begin = [this, &method](grpc::CallbackServerContext* context) {
      return Begin(method, *context);
    };
    MarkMethodRawCallback(index++, std::make_unique<RawHandler>(std::move(begin)).release());
  }
}

// ---- who calls

ClientReactor* ClientService::Begin(const Method& method,
                                    const grpc::CallbackServerContext& context) {
  Caller caller;
  caller.traceparent = MetadataOf(context, "traceparent");
  const std::string key = MetadataOf(context, "authorization");
  caller.audit = AuditCall::Begin(deps_.audit,
                                  {.from = SourceOfGrpcPeer(context.peer()),
                                   .front_end = "grpc",
                                   .what = method.path,
                                   .request_id = "",
                                   .authorization = key},
                                  method.needs == Needs::kStatus);
  const absl::Status known = Identify(method.needs, context, caller);
  if (method.handle == nullptr) {
    if (!known.ok()) return GenerateSession::Refuse(known, caller.audit);
    auto start = [this, caller](const grpc::ByteBuffer& bytes, std::shared_ptr<AnswerSink> sink) {
      return Generate(caller, bytes, std::move(sink));
    };
    return GenerateSession::Start(caller.audit, std::move(start), deps_.long_work, ShortBytesMax());
  }
  if (!known.ok()) return UnaryCall::Refuse(known, caller.audit);
  return UnaryCall::Start(caller.tenant, caller.audit, [this, &method](UnaryCall& call) {
    const size_t bytes = call.request().Length();
    if (bytes > method.bytes_max) {
      return call.Fail(absl::InvalidArgumentError(
          absl::StrCat("the message has ", bytes, " bytes, expected at most ", method.bytes_max)));
    }
    // What ends or looks up counts as no request: a used-up quota must not keep it away.
    const absl::Status counted =
        method.needs == Needs::kInfer ? CountRequest(call.tenant()) : absl::OkStatus();
    counted.ok() ? (this->*method.handle)(call) : call.Fail(counted);
  });
}

absl::Status ClientService::Identify(Needs needs, const grpc::CallbackServerContext& context,
                                     Caller& caller) const {
  if (needs == Needs::kStatus) {
    RETURN_IF_ERROR(CheckMaySeeStatus(context, caller));
  } else if (keys_ != nullptr) {
    ASSIGN_OR_RETURN(caller.tenant,
                     keys_->IdentifyFrom(SourceOfGrpcPeer(context.peer()),
                                         MetadataOf(context, "authorization"), RealClock().Now()));
  }
  if (caller.audit != nullptr) caller.audit->SetTenant(caller.tenant.get());
  if (needs == Needs::kStatus && caller.tenant != nullptr) return caller.tenant->CheckIsAdmin();
  if (needs == Needs::kInfer && caller.tenant != nullptr) return caller.tenant->CheckMayInfer();
  return absl::OkStatus();
}

void ClientService::GuardStatus(const std::string& fleet_secret) {
  guards_status_ = true;
  // A hash, so that the time of comparing tells nothing of the key.
  if (!fleet_secret.empty())
    operator_key_hash_ = Sha256Hex(absl::StrCat("Bearer ", rpc::OperatorKey(fleet_secret)));
}

absl::Status ClientService::CheckMaySeeStatus(const grpc::CallbackServerContext& context,
                                              Caller& caller) const {
  if (keys_ == nullptr || !guards_status_) return absl::OkStatus();
  const std::string authorization = MetadataOf(context, "authorization");
  if (Sha256Hex(authorization) == operator_key_hash_) return absl::OkStatus();
  ASSIGN_OR_RETURN(caller.tenant, keys_->IdentifyFrom(SourceOfGrpcPeer(context.peer()),
                                                      authorization, RealClock().Now()));
  return absl::OkStatus();
}

absl::Status ClientService::CountRequest(const std::shared_ptr<Tenant>& tenant) {
  return tenant == nullptr ? absl::OkStatus() : tenant->CountRequest(RealClock().Now());
}

absl::Status ClientService::Shed(absl::FunctionRef<bool()> resumes) const {
  // How long gRPC has held the call is not known, so its wait so far counts as zero.
  return deps_.shedder.Admit(LoadShedder::FrontEndKind::kGrpc, absl::ZeroDuration(),
                             RealClock().Now(), resumes);
}

// ---- answers

absl::StatusOr<std::shared_ptr<AnswerSession>> ClientService::Generate(
    const Caller& caller, const grpc::ByteBuffer& bytes, std::shared_ptr<AnswerSink> sink) const {
  v1::GenerateRequest request;
  RETURN_IF_ERROR(Shed([&] { return ParseRequest(bytes, request).ok() && Resumes(request); }));
  RETURN_IF_ERROR(CountRequest(caller.tenant));
  RETURN_IF_ERROR(ParseRequest(bytes, request));
  Arrival arrival{RealClock().Now(), TraceIdOf(caller.traceparent),
                  LoadShedder::FrontEndKind::kGrpc};
  ASSIGN_OR_RETURN(arrival.guard, deps_.running.Enter());
  arrival.audit = caller.audit;
  if (caller.audit != nullptr) caller.audit->SetRequestId(request.request_id());
  if (caller.tenant != nullptr) {
    ASSIGN_OR_RETURN(arrival.call, TenantCall::Begin(caller.tenant, SequencesOf(request),
                                                     request.request_id(), Resumes(request)));
  }
  return AnswerSession::Start(request, arrival, deps_, std::move(sink));
}

void ClientService::Abort(UnaryCall& call) {
  v1::AbortRequest request;
  if (const absl::Status read = ParseRequest(call.request(), request); !read.ok())
    return call.Fail(read);
  // In the low priority class: after the request itself, if that still waits.
  RunOnCore(
      call,
      [&call, id = RequestId(SoughtId(call.tenant(), request.request_id()))](RouterCore& core,
                                                                             absl::Time now) {
        core.Finish(id, request::FinishReason::kAborted, now);
        call.Reply(v1::AbortResponse());
      },
      /*late=*/true);
}

void ClientService::RunOnCore(UnaryCall& call, std::function<void(RouterCore&, absl::Time)> reply,
                              bool late) {
  CoreCall query{std::move(reply)};
  const bool queued = late ? inbox_.TryPushLow(std::move(query)) : inbox_.TryPush(std::move(query));
  if (!queued) call.Fail(InboxFull());
}

// ---- tokens

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

void ClientService::ReplyWithTokens(UnaryCall& call) const {
  v1::TokenizeRequest request;
  v1::TokenizeResponse tokens;
  absl::Status status = ParseRequest(call.request(), request);
  if (status.ok()) status = FillTokens(request, tokens);
  status.ok() ? call.Reply(tokens) : call.Fail(status);
}

size_t ClientService::ShortBytesMax() const {
  return assets_.renders_shortly ? LongWork::kShortBytesMax : 0;
}

void ClientService::Tokenize(UnaryCall& call) {
  RunByLength(call, ShortBytesMax(), &ClientService::ReplyWithTokens);
}

void ClientService::Detokenize(UnaryCall& call) {
  RunByLength(call, LongWork::kShortBytesMax, &ClientService::ReplyWithText);
}

void ClientService::RunByLength(UnaryCall& call, size_t short_bytes_max,
                                void (ClientService::*reply)(UnaryCall&) const) const {
  if (const absl::Status shed = Shed([] { return false; }); !shed.ok()) return call.Fail(shed);
  const size_t bytes = call.request().Length();
  if (bytes <= short_bytes_max) return (this->*reply)(call);
  const absl::Status added =
      deps_.long_work.Add(bytes, [this, &call, reply] { (this->*reply)(call); });
  if (!added.ok()) call.Fail(added);
}

void ClientService::ReplyWithText(UnaryCall& call) const {
  v1::DetokenizeRequest request;
  if (const absl::Status read = ParseRequest(call.request(), request); !read.ok())
    return call.Fail(read);
  const auto& ids = request.ids();
  const auto bad = std::find_if(ids.begin(), ids.end(), [this](int32_t id) {
    return id < 0 || id >= assets_.identity.vocab_size;
  });
  if (bad != ids.end()) {
    return call.Fail(absl::InvalidArgumentError(
        absl::StrCat("ids: token ", *bad, " at index ", bad - ids.begin(),
                     " is outside the vocabulary of ", assets_.identity.vocab_size)));
  }
  v1::DetokenizeResponse response;
  response.set_text(assets_.tokenizer->Decode(std::vector<TokenId>(ids.begin(), ids.end()),
                                              !request.keep_special_tokens()));
  call.Reply(response);
}

// ---- the state of this router

void ClientService::GetModel(UnaryCall& call) {
  v1::GetModelResponse model;
  model.set_name(assets_.identity.served_name());
  model.set_architecture(assets_.architecture);
  model.set_fingerprint(assets_.identity.fingerprint);
  model.set_vocab_size(assets_.identity.vocab_size);
  for (const TokenId id : assets_.eos_token_ids) model.add_stop_token_ids(id);
  const ServedFleet served = served_();
  model.set_numerics_id(served.numerics_id);
  model.set_context_tokens(static_cast<int32_t>(served.context_tokens));
  call.Reply(model);
}

void ClientService::GetStatus(UnaryCall& call) {
  status_.Read(RealClock().Now(), [this, &call](const StatusBoard::Status& status) {
    if (status == nullptr) return call.Fail(InboxFull());
    v1::GetStatusResponse response = *status;
    response.mutable_router()->set_requests_refused(deps_.metrics.refused());
    call.Reply(response);
  });
}

void ClientService::GetTrace(UnaryCall& call) {
  v1::GetTraceRequest request;
  if (const absl::Status read = ParseRequest(call.request(), request); !read.ok())
    return call.Fail(read);
  absl::StatusOr<v1::RequestTrace> trace =
      deps_.traces.Find(SoughtId(call.tenant(), request.request_id()));
  if (!trace.ok()) return call.Fail(trace.status());
  v1::GetTraceResponse response;
  *response.mutable_trace() = *std::move(trace);
  response.mutable_trace()->set_request_id(request.request_id());
  call.Reply(response);
}

void ClientService::ListRequests(UnaryCall& call) {
  v1::ListRequestsRequest request;
  if (const absl::Status read = ParseRequest(call.request(), request); !read.ok())
    return call.Fail(read);
  if (request.limit() < 0 || request.limit() > RunningQuery::kLimitMax) {
    return call.Fail(absl::InvalidArgumentError(absl::StrCat(
        "limit: ", request.limit(), ", expected a number in [0, ", RunningQuery::kLimitMax, "]")));
  }
  RunningQuery query;
  if (request.limit() > 0) query.limit = request.limit();
  // An admin sees the whole names; a tenant its own requests, by the names that it gave them.
  const std::shared_ptr<Tenant>& tenant = call.tenant();
  if (tenant != nullptr && !tenant->limits().is_admin) query.id_prefix = tenant->ScopedId("");
  RunOnCore(
      call,
      [&call, query](RouterCore& core, absl::Time now) {
        v1::ListRequestsResponse response = core.ListRunning(query, now);
        for (v1::RunningRequest& running : *response.mutable_requests())
          running.mutable_request_id()->erase(0, query.id_prefix.size());
        call.Reply(response);
      },
      /*late=*/true);
}

}  // namespace tandem::router
