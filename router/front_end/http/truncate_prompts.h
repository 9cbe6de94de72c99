// Makes prompts and answers fit into the context: cuts prompts to their last tokens, as vLLM's
// truncate_prompt_tokens and the truncation of other APIs ask, and shortens answers of Ollama's
// API. Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/http/fleet_room.h"
#include "router/front_end/model_assets.h"

namespace tandem::router {

// What a prompt that is cut as much as needed (ApiRequest::leaves_answer) leaves for an answer
// without a limit: a quarter of the context, and no more than this.
inline constexpr int64_t kAnswerShareMax = 1024;

// Tokenizes and cuts the prompts of `api` if it has truncate_prompt_tokens. A cut prompt is token
// ids. Of an Ollama request, clears a limit of the answer that exceeds what `room` leaves
// beside the prompt: without one an answer takes what there is. Where the outcome depends on
// `room`, api.fitted_to says so. kInvalidArgument when the request asks for more than the model's
// context.
absl::Status TruncatePrompts(const ModelAssets& assets, FleetRoom room, ApiRequest& api);

}  // namespace tandem::router
