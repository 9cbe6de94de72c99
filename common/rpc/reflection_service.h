// gRPC's server reflection: a server tells a client such as grpcurl which services it has and what
// their messages look like, in versions v1 and v1alpha of the protocol. Calls need no key, so what
// they take is bounded: open streams hold no threads.
// Thread safety: AddReflection is called before the server starts; gRPC's threads call the
// services.
#pragma once

#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/server_builder.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace tandem::rpc {

// A longer request ends its stream with RESOURCE_EXHAUSTED. Names are shorter.
inline constexpr size_t kReflectionRequestBytesMax = 8 << 10;
// Open streams of one server. One more cancels the oldest.
inline constexpr size_t kReflectionStreamsMax = 16;

// The server that `builder` starts answers both versions for all services that it has by then. The
// caller keeps the services that are returned until the server has ended.
std::vector<std::unique_ptr<grpc::Service>> AddReflection(grpc::ServerBuilder& builder);
// It answers neither: the calls are unknown to it.
void RemoveReflection(grpc::ServerBuilder& builder);

}  // namespace tandem::rpc
