// Reads a body of POST /v1/responses: OpenAI's fields, with the extra parameters that vLLM adds.
// The reader rewrites the body as that of a chat and lets ReadChat read it, so that equal
// conversations become equal prompts. It checks and keeps what only this API has.
// Thread safety: pure functions.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/json_body.h"
#include "router/front_end/model_assets.h"

namespace tandem::router {

// The router's settings and state that reading depends on.
struct ResponseReading {
  bool strict = false;  // refuse unknown fields
  bool keeps = false;   // keep answers unless the request says otherwise
  // Returns the conversation up to and including the kept response of this id, as a list of items;
  // kNotFound naming previous_response_id. Null: this router keeps no responses.
  std::function<absl::StatusOr<Json>(const std::string& id)> find;
};

// What an answer to such a request needs besides an ApiRequest.
struct ResponseParts {
  // Makes `settings_text` of `settings`, and clears these.
  void PackSettings();
  // What is kept while the answer is made. REQUIRES: PackSettings was called.
  int64_t held_bytes() const { return static_cast<int64_t>(settings_text.size() + items.size()); }

  // The members of the response object that repeat the request, with defaults filled in.
  Json settings = Json::object();
  // The same as JSON text without braces, and without the service tier, which the router chooses.
  // It takes no more than the request's body, while the values of a schema take many times as much.
  std::string settings_text;
  bool store = false;
  std::string items;  // with `store`: the conversation so far, a JSON list of items
  // Stores the finished object with its id and `items`; null: it is not kept.
  std::function<void(const std::string& id, std::string object, std::string items)> keep;
};

// The result has one request, and `response`. kInvalidArgument, kUnimplemented and kNotFound name
// the field: "input[1].content[0].type: …". REQUIRES: body.is_object().
absl::StatusOr<ApiRequest> ReadResponse(const Json& body, const ModelAssets& assets, absl::Time now,
                                        const ResponseReading& reading);

// `status`, whose message begins with a chat's field, with this API's name of that field.
absl::Status ToResponseFieldNames(const absl::Status& status);

}  // namespace tandem::router
