// Turns the bytes of a client's request into a message. gRPC's own parsing answers every failure
// with a bare UNIMPLEMENTED; this parser names the field that is not UTF-8.
// Thread safety: pure functions.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace tandem::router {

// kInvalidArgument, naming the string field that is not valid UTF-8 and its first bad byte, or
// saying that the bytes are not a message of this type.
absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);

grpc::ByteBuffer SerializeResponse(const google::protobuf::Message& message);

}  // namespace tandem::router
