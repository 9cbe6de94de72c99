// The API key that a router may require, as metadata of a gRPC call. Thread safety: a pure
// function.
#pragma once

#include <grpcpp/client_context.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace tandem::cli {

// Adds nothing when `api_key` is empty.
inline void AddApiKey(grpc::ClientContext& context, const std::string& api_key) {
  if (!api_key.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", api_key));
}

}  // namespace tandem::cli
