// OpenAI's /v1/responses bodies, with the extra parameters that vLLM gives them, as the chats that
// they mean: such a body is rewritten as a chat's and read as one, so that equal conversations are
// equal prompts. What only this API has is checked and kept here. Thread safety: pure functions.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/front_end/http/api_request.h"

namespace tandem::router {

// How requests are read.
struct ResponseReading {
  bool strict = false;  // refuses unknown fields
  bool keeps = false;   // answers are kept unless the request says otherwise
  // The conversation up to and with the kept response of this id, as a list of items. kNotFound
  // naming previous_response_id. Null: none is kept.
  std::function<absl::StatusOr<Json>(const std::string& id)> find;
};

// What an answer to such a request needs beside an ApiRequest.
struct ResponseParts {
  // The members of the response object that repeat what was asked for, defaults filled in.
  Json settings = Json::object();
  bool store = false;
  std::string items;  // with `store`: the conversation so far, a JSON list of items
  // Takes the finished object with its id and `items`; null: it is not kept.
  std::function<void(const std::string& id, std::string object, std::string items)> keep;
};

// kInvalidArgument and kUnimplemented name the field: "input[1].content[0].type: …"; so does
// kNotFound. The result has one request, and `response`.
absl::StatusOr<ApiRequest> ReadResponse(const Json& body, const ModelAssets& assets, absl::Time now,
                                        const ResponseReading& reading);

// `status`, which speaks of a chat's fields, as this API calls them.
absl::Status InResponseTerms(const absl::Status& status);

}  // namespace tandem::router
