// One turn of a conversation, as tests of this folder send it.
#pragma once

#include <cstdint>
#include <vector>

#include "tandem/v1/client.pb.h"

namespace tandem::testing {

// A request of these tokens with a fixed seed. Its answer has `max_tokens` tokens, with their ids.
inline v1::GenerateRequest Turn(const std::vector<int32_t>& tokens, int max_tokens) {
  v1::GenerateRequest request;
  for (const int32_t token : tokens) request.mutable_tokens()->add_ids(token);
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_return_token_ids(true);
  request.mutable_sampling()->set_seed(7);
  return request;
}

}  // namespace tandem::testing
