// A client of a router that is not there: it answers Generate as a test says, and no other call.
// Thread safety: as Generate's of the derived class.
#pragma once

#include <functional>
#include <string>

#include "cli/client/client.h"

namespace tandem::cli {

class AnsweringClient : public Client {
 public:
  using OnPart = std::function<bool(const v1::GenerateResponse&)>;
  using Client::Generate;

  absl::Status Generate(const v1::GenerateRequest& request, const OnPart& on_part,
                        Cancellation&) final {
    return Generate(request, on_part);
  }
  absl::StatusOr<v1::GetModelResponse> GetModel() override { return absl::UnimplementedError(""); }
  absl::StatusOr<v1::GetModelResponse> GetModel(Cancellation&) final { return GetModel(); }
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest&) final {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest&) final {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::GetStatusResponse> GetStatus(absl::Duration) final {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::ListRequestsResponse> ListRequests(int32_t, absl::Duration) final {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::RequestTrace> GetTrace(const std::string&) final {
    return absl::UnimplementedError("");
  }
};

}  // namespace tandem::cli
