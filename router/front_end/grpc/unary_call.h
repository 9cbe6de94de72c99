// One call with one request message and one response, over gRPC. The service decides about it by
// its metadata, before gRPC reads its message: to gRPC the method is a stream, whose messages are
// read only when they are asked for. On the wire both are the same.
//
// Thread safety: gRPC calls the reactions, one at a time; the handler ends the call once, from any
// thread.
// Owner: itself, until OnDone.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "router/front_end/audit_call.h"
#include "router/front_end/tenant.h"

namespace tandem::router {

using ClientReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

class UnaryCall final : public ClientReactor {
 public:
  // Runs with the message that has come, on a gRPC thread. It ends the call, at once or later.
  using Handler = std::function<void(UnaryCall&)>;

  // Reads the message, then runs `handler`. `tenant`: null in a router without keys; `audit`: null
  // without an audit log.
  static UnaryCall* Start(std::shared_ptr<Tenant> tenant, std::shared_ptr<AuditCall> audit,
                          Handler handler);
  // A call that is refused before its message is read.
  static UnaryCall* Refuse(const absl::Status& status, std::shared_ptr<AuditCall> audit);

  const grpc::ByteBuffer& request() const { return request_; }
  const std::shared_ptr<Tenant>& tenant() const { return tenant_; }
  // These end the call; it is gone afterwards.
  void Reply(const google::protobuf::Message& response);
  void Fail(const absl::Status& status);

  // ---- gRPC
  void OnReadDone(bool ok) override;
  void OnDone() override { self_ = nullptr; }

 private:
  // The call, which owns itself.
  static UnaryCall* Make(std::shared_ptr<Tenant> tenant, std::shared_ptr<AuditCall> audit,
                         Handler handler);
  UnaryCall(std::shared_ptr<Tenant> tenant, std::shared_ptr<AuditCall> audit, Handler handler)
      : tenant_(std::move(tenant)), audit_(std::move(audit)), handler_(std::move(handler)) {}

  std::unique_ptr<UnaryCall> self_;  // held until OnDone
  const std::shared_ptr<Tenant> tenant_;
  const std::shared_ptr<AuditCall> audit_;
  const Handler handler_;
  grpc::ByteBuffer request_, response_;
};

}  // namespace tandem::router
