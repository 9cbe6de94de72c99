// Turns the bytes of a client's request into a message. gRPC's own parsing answers every failure
// with an UNIMPLEMENTED that says nothing; this names the field that is not UTF-8.
// Thread safety: pure functions.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace tandem::router {

// kInvalidArgument names the string field that is not valid UTF-8 and its first bad byte, or says
// that the bytes are no message of this type.
absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);

grpc::ByteBuffer SerializeResponse(const google::protobuf::Message& message);

}  // namespace tandem::router
