// Converts absl::Status to grpc::Status and back; the codes are the same numbers.
// Thread safety: pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace tandem::rpc {

// gRPC carries the message in metadata, with three bytes for each byte that is not ASCII. Clients
// accept 8 KiB of metadata; a longer message reaches them as an error about metadata instead.
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
