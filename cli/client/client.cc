#include "cli/client/client.h"

#include <grpcpp/grpcpp.h>

#include "absl/time/clock.h"
#include "cli/client/api_key.h"
#include "cli/client/call_error.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"
#include "tandem/v1/client.grpc.pb.h"

namespace tandem::cli {

void Cancellation::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (end_call_) end_call_();
}

void Cancellation::Reset() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = false;
}

bool Cancellation::cancelled() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

// Names the call that a Cancellation ends, as long as this object lives.
// Thread safety: the call's thread. Owner: the call.
class Attachment {
 public:
  Attachment(Cancellation& cancellation, std::function<void()> end_call)
      : cancellation_(cancellation) {
    absl::MutexLock lock(&cancellation_.mutex_);
    if (cancellation_.cancelled_) end_call();
    cancellation_.end_call_ = std::move(end_call);
  }
  ~Attachment() {
    absl::MutexLock lock(&cancellation_.mutex_);
    cancellation_.end_call_ = nullptr;
  }

 private:
  Cancellation& cancellation_;
};

namespace {

constexpr absl::Duration kUnaryTimeout = absl::Seconds(30);

class ClientImpl final : public Client {
 public:
  ClientImpl(const std::string& router, const std::string& api_key,
             const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : router_(router), api_key_(api_key) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(64 << 20);
    // gRPC would try less and less often, up to every two minutes: too rarely for a user who waits.
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
    stub_ = v1::Tandem::NewStub(grpc::CreateCustomChannel(router, credentials, arguments));
  }

  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<bool(const v1::GenerateResponse&)>& on_part) override {
    Cancellation never;
    return Generate(request, on_part, never);
  }

  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<bool(const v1::GenerateResponse&)>& on_part,
                        Cancellation& cancellation) override {
    grpc::ClientContext context;
    const Attachment attached(cancellation, [&context] { context.TryCancel(); });
    AddApiKey(context, api_key_);
    const auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse part;
    while (reader->Read(&part)) {
      if (on_part(part)) continue;
      context.TryCancel();
      reader->Finish();
      return absl::OkStatus();
    }
    return Explain(reader->Finish(), cancellation.cancelled());
  }

  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request) override {
    return Call<v1::TokenizeResponse>(&v1::Tandem::Stub::Tokenize, request, kUnaryTimeout);
  }
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request) override {
    return Call<v1::DetokenizeResponse>(&v1::Tandem::Stub::Detokenize, request, kUnaryTimeout);
  }
  absl::StatusOr<v1::GetModelResponse> GetModel() override {
    Cancellation never;
    return GetModel(never);
  }
  absl::StatusOr<v1::GetModelResponse> GetModel(Cancellation& cancellation) override {
    grpc::ClientContext context;
    const Attachment attached(cancellation, [&context] { context.TryCancel(); });
    return Call<v1::GetModelResponse>(&v1::Tandem::Stub::GetModel, v1::GetModelRequest(),
                                      kUnaryTimeout, context, &cancellation);
  }
  absl::StatusOr<v1::GetStatusResponse> GetStatus(absl::Duration timeout) override {
    return Call<v1::GetStatusResponse>(&v1::Tandem::Stub::GetStatus, v1::GetStatusRequest(),
                                       timeout);
  }
  absl::StatusOr<v1::ListRequestsResponse> ListRequests(int32_t limit,
                                                        absl::Duration timeout) override {
    v1::ListRequestsRequest request;
    request.set_limit(limit);
    return Call<v1::ListRequestsResponse>(&v1::Tandem::Stub::ListRequests, request, timeout);
  }
  absl::StatusOr<v1::RequestTrace> GetTrace(const std::string& request_id) override {
    v1::GetTraceRequest request;
    request.set_request_id(request_id);
    absl::StatusOr<v1::GetTraceResponse> response =
        Call<v1::GetTraceResponse>(&v1::Tandem::Stub::GetTrace, request, kUnaryTimeout);
    if (!response.ok()) return response.status();
    return std::move(*response->mutable_trace());
  }

 private:
  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(grpc::Status (v1::Tandem::Stub::*method)(grpc::ClientContext*,
                                                                         const Request&, Response*),
                                const Request& request, absl::Duration timeout) {
    grpc::ClientContext context;
    return Call<Response>(method, request, timeout, context);
  }

  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(grpc::Status (v1::Tandem::Stub::*method)(grpc::ClientContext*,
                                                                         const Request&, Response*),
                                const Request& request, absl::Duration timeout,
                                grpc::ClientContext& context,
                                const Cancellation* cancellation = nullptr) {
    AddApiKey(context, api_key_);
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    Response response;
    const grpc::Status called = (stub_.get()->*method)(&context, request, &response);
    const absl::Status status =
        Explain(called, cancellation != nullptr && cancellation->cancelled());
    if (!status.ok()) return status;
    return response;
  }

  // `cancelled`: by this client's user, who knows why the call ended.
  absl::Status Explain(const grpc::Status& status, bool cancelled) const {
    const absl::Status plain = rpc::FromGrpc(status);
    if (cancelled && absl::IsCancelled(plain)) return plain;
    return ExplainCallError(router_, !api_key_.empty(), plain);
  }

  const std::string router_, api_key_;
  std::unique_ptr<v1::Tandem::Stub> stub_;
};

}  // namespace

std::unique_ptr<Client> Client::Create(const std::string& router, const std::string& api_key) {
  return std::make_unique<ClientImpl>(router, api_key, grpc::InsecureChannelCredentials());
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& router,
                                                        const ClientOptions& options) {
  ASSIGN_OR_RETURN(const auto credentials, rpc::ChannelCredentials(options.tls));
  return std::make_unique<ClientImpl>(router, options.api_key, credentials);
}

}  // namespace tandem::cli
