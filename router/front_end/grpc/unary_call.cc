#include "router/front_end/grpc/unary_call.h"

#include <utility>

#include "common/rpc/error_details.h"
#include "router/front_end/grpc/parse_request.h"

namespace tandem::router {

UnaryCall* UnaryCall::Make(std::shared_ptr<Tenant> tenant, std::shared_ptr<AuditCall> audit,
                           Handler handler) {
  auto made = std::unique_ptr<UnaryCall>(
      new UnaryCall(std::move(tenant), std::move(audit), std::move(handler)));
  UnaryCall* call = made.get();
  call->self_ = std::move(made);
  return call;
}

UnaryCall* UnaryCall::Start(std::shared_ptr<Tenant> tenant, std::shared_ptr<AuditCall> audit,
                            Handler handler) {
  UnaryCall* call = Make(std::move(tenant), std::move(audit), std::move(handler));
  call->StartRead(&call->request_);
  return call;
}

UnaryCall* UnaryCall::Refuse(const absl::Status& status, std::shared_ptr<AuditCall> audit) {
  UnaryCall* call = Make(nullptr, std::move(audit), nullptr);
  call->Fail(status);
  return call;
}

void UnaryCall::OnReadDone(bool ok) {
  if (!ok) return Fail(absl::InvalidArgumentError("the call ended without a message"));
  handler_(*this);
}

void UnaryCall::Reply(const google::protobuf::Message& response) {
  if (audit_ != nullptr) audit_->SetResult(absl::OkStatus());
  response_ = SerializeResponse(response);
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
}

void UnaryCall::Fail(const absl::Status& status) {
  if (audit_ != nullptr) audit_->SetResult(status);
  Finish(rpc::ToGrpcWithDetails(status));
}

}  // namespace tandem::router
