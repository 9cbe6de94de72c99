// OpenAI's /v1/responses bodies, with the extra parameters that vLLM gives them, as the chats that
// they mean: such a body is rewritten as a chat's and read as one, so that equal conversations are
// equal prompts. What only this API has is checked and kept here. Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/http/api_request.h"

namespace tandem::router {

// What an answer to such a request needs beside an ApiRequest.
struct ResponseParts {
  // The members of the response object that repeat what was asked for, defaults filled in.
  Json settings = Json::object();
  bool parallel_calls = true;  // else only the first call of a function is given
};

// kInvalidArgument and kUnimplemented name the field: "input[1].content[0].type: …". `strict`
// refuses unknown fields. The result has one request, and `response`.
absl::StatusOr<ApiRequest> ReadResponse(const Json& body, const ModelAssets& assets, absl::Time now,
                                        bool strict);

// `status`, which speaks of a chat's fields, as this API calls them.
absl::Status InResponseTerms(const absl::Status& status);

}  // namespace tandem::router
