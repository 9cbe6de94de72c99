// Reads a conversation from a chat's body and renders it with the model's chat template. /tokenize
// reads conversations, too.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/front_end/http/json_fields.h"
#include "router/front_end/model_assets.h"

namespace tandem::router {

// The prompt's text, from the fields `messages`, `tools` (left out of the prompt unless
// `with_tools`), `documents`, `add_generation_prompt`, `continue_final_message` and
// `chat_template_kwargs`. kInvalidArgument and kUnimplemented name the field; a fault that `fields`
// already holds is returned, too.
absl::StatusOr<std::string> RenderMessages(Fields& fields, const ModelAssets& assets,
                                           absl::Time now, bool with_tools);

// Checks that `tools` is a list of functions, each an object with a name and maybe a schema.
// kInvalidArgument names the member: "tools[0].function: …".
absl::Status CheckTools(Fields& fields, const Json& tools);

// The arguments of a call that a conversation brings as text. An empty object where the text is not
// one JSON object within the bounds of bodies: an answer's length or a stop string cuts calls off,
// and clients send these back as they are.
Json ParseArguments(absl::string_view text);

}  // namespace tandem::router
