// absl::Status ↔ grpc::Status; the codes are the same numbers.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace tandem::rpc {

// gRPC carries the message as metadata, three bytes for one that is not ASCII, of which clients
// take 8 KiB in all; a longer one would reach them as an error about metadata.
inline constexpr size_t kStatusMessageBytesMax = 2048;

inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message().substr(0, kStatusMessageBytesMax));
  if (message.size() < status.message().size()) message += " ...";
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message);
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace tandem::rpc
