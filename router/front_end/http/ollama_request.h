// Reads bodies of Ollama's POST /api/chat and /api/generate. The readers rewrite a body as that of
// a chat (or, for a raw prompt, of a completion) and let its reader read it, so that equal
// conversations become equal prompts, whichever API brings them.
// Thread safety: pure functions. Errors: kInvalidArgument, kUnimplemented and kNotFound name the
// field as Ollama calls it: "options.top_k: …". REQUIRES of each body: body.is_object().
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/json_body.h"
#include "router/front_end/model_assets.h"

namespace tandem::router {

struct OllamaReading {
  absl::Time now;       // what chat templates print as the date
  bool strict = false;  // refuse unknown fields
};

// The result has one request and streams unless the body says otherwise.
absl::StatusOr<ApiRequest> ReadOllamaChat(const Json& body, const ModelAssets& assets,
                                          const OllamaReading& reading);
absl::StatusOr<ApiRequest> ReadOllamaGenerate(const Json& body, const ModelAssets& assets,
                                              const OllamaReading& reading);

// A body without a prompt asks Ollama to load the model, or with `keep_alive` 0 to unload it.
// Returns the `done_reason` that says so; nullopt: the body has a prompt.
std::optional<std::string> OllamaLoadReason(const Json& body);
// Whether the fields of such a body have the types that they have beside a prompt. They have no
// effect. kInvalidArgument names the field.
absl::Status CheckOllamaLoad(const Json& body, ApiKind kind);

// `name` without the tag ":latest", with which Ollama's clients complete names, unless the model is
// served under the whole of it. kNotFound when it is not served.
absl::StatusOr<std::string> OllamaModelName(const std::string& name, const ModelAssets& assets);

// `status`, whose message begins with a field of a chat, with the name that Ollama's endpoint of
// `kind` has for that field.
absl::Status ToOllamaFieldNames(const absl::Status& status, ApiKind kind);

}  // namespace tandem::router
