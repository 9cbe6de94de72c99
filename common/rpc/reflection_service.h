// gRPC's server reflection: a server tells a client such as grpcurl which services it has and what
// their messages look like. gRPC's library answers version v1alpha of the protocol only; this adds
// version v1 beside it, with the same answers.
// Thread safety: AddReflection is called before the server starts; gRPC's threads call the service.
// Owner: the server owns the service.
#pragma once

#include <grpcpp/server_builder.h>

namespace tandem::rpc {

// The server that `builder` starts answers both versions for all services that it has by then.
void AddReflection(grpc::ServerBuilder& builder);
// It answers neither: the calls are unknown to it.
void RemoveReflection(grpc::ServerBuilder& builder);

}  // namespace tandem::rpc
