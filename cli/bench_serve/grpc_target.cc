// A target that speaks tandem.v1 over gRPC: implements NewGrpcTarget
// (cli/bench_serve/load_target.h).
#include <grpcpp/grpcpp.h>

#include <boost/asio/post.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/bench_serve/load_target.h"
#include "cli/client/api_key.h"
#include "cli/client/client.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"
#include "tandem/v1/client.grpc.pb.h"

namespace tandem::cli {
namespace {

using boost::asio::io_context;

// Lives until OnDone; its reads run on gRPC's threads, the observer on the io_context's.
class GrpcCall final : public LoadCall,
                       public grpc::ClientReadReactor<v1::GenerateResponse>,
                       public std::enable_shared_from_this<GrpcCall> {
 public:
  GrpcCall(io_context& context, const std::string& api_key, AnswerObserver& observer)
      : io_(context), observer_(observer) {
    AddApiKey(context_, api_key);
  }

  void Begin(v1::Tandem::Stub& stub, v1::GenerateRequest request) {
    self_ = shared_from_this();
    request_ = std::move(request);
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&part_);
    StartCall();
  }
  void Cancel() override { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    const absl::Time at = RealClock().Now();
    if (part_.has_delta() && !part_.delta().text().empty()) {
      boost::asio::post(io_, [self = self_, at] { self->observer_.OnText(at); });
    } else if (part_.has_started()) {
      service_tier_ = part_.started().service_tier();
    } else if (part_.has_finished()) {
      finished_ = true;
      const v1::Usage& usage = part_.finished().usage();
      const v1::Route& route = part_.finished().route();
      const bool apart = !route.prefill_node().empty();
      const v1::TokensBySource& tokens = apart ? route.prefill_tokens() : route.decode_tokens();
      const AnswerUsage total = {.prompt_tokens = usage.prompt_tokens(),
                                 .output_tokens = usage.output_tokens(),
                                 .cached_tokens = usage.cached_tokens(),
                                 .service_tier = service_tier_,
                                 .prefilled_apart = apart,
                                 .host_memory_tokens = tokens.from_host_memory(),
                                 .disk_tokens = tokens.from_disk(),
                                 .fetched_tokens = tokens.fetched()};
      boost::asio::post(io_, [self = self_, total] { self->observer_.OnUsage(total); });
    }
    StartRead(&part_);
  }

  void OnDone(const grpc::Status& status) override {
    const absl::Time at = RealClock().Now();
    std::string error, message;
    if (!status.ok()) {
      error = absl::StrCat(
          "gRPC ", absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code())));
      message = status.error_message();
    } else if (!finished_) {
      error = "cut off";
      message = "the stream ended before the answer";
    }
    boost::asio::post(io_, [self = std::move(self_), at, error, message] {
      self->observer_.OnEnd(at, error, message);
    });
  }

 private:
  io_context& io_;
  AnswerObserver& observer_;
  std::shared_ptr<GrpcCall> self_;  // gRPC holds a plain pointer until OnDone
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse part_;
  bool finished_ = false;
  std::string service_tier_;
};

class GrpcTarget final : public LoadTarget {
 public:
  GrpcTarget(const TargetOptions& options, io_context& context)
      : options_(options),
        address_(absl::StrCat(options.address.host, ":", options.address.port)),
        io_(context) {}

  absl::Status Connect() {
    ASSIGN_OR_RETURN(const auto credentials, rpc::ChannelCredentials(options_.tls));
    stub_ = v1::Tandem::NewStub(grpc::CreateChannel(address_, credentials));
    ASSIGN_OR_RETURN(client_,
                     Client::Connect(address_, {.api_key = options_.api_key, .tls = options_.tls}));
    ASSIGN_OR_RETURN(const v1::GetModelResponse model, client_->GetModel());
    model_ = options_.model.empty() ? model.name() : options_.model;
    return absl::OkStatus();
  }

  std::shared_ptr<LoadCall> Start(const LoadRequest& load, AnswerObserver& observer) override {
    v1::GenerateRequest request;
    request.set_model(options_.model);
    if (load.tokens.empty()) {
      request.set_text(load.text);
    } else {
      request.mutable_tokens()->mutable_ids()->Add(load.tokens.begin(), load.tokens.end());
    }
    request.mutable_sampling()->set_temperature(options_.temperature);
    request.mutable_sampling()->set_seed(load.seed);
    request.mutable_stop()->set_max_tokens(load.max_tokens);
    request.mutable_stop()->set_ignore_eos(options_.ignore_eos);
    request.set_service_tier(load.service_tier);
    auto call = std::make_shared<GrpcCall>(io_, options_.api_key, observer);
    call->Begin(*stub_, std::move(request));
    return call;
  }

  const std::string& model() const override { return model_; }

  absl::StatusOr<int64_t> CountTokens(const std::string& text) override {
    v1::TokenizeRequest request;
    request.set_text(text);
    ASSIGN_OR_RETURN(const v1::TokenizeResponse response, client_->Tokenize(request));
    return response.ids_size();
  }

 private:
  const TargetOptions options_;
  const std::string address_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<v1::Tandem::Stub> stub_;
  io_context& io_;
  std::string model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LoadTarget>> NewGrpcTarget(const TargetOptions& options,
                                                          io_context& context) {
  auto target = std::make_unique<GrpcTarget>(options, context);
  RETURN_IF_ERROR(target->Connect());
  return target;
}

}  // namespace tandem::cli
