// Cuts prompts to their last tokens, as vLLM's truncate_prompt_tokens asks.
// Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/model_assets.h"

namespace tandem::router {

// Tokenizes and cuts the prompts of `api` if it has truncate_prompt_tokens; else does nothing. A
// cut prompt is token ids. kInvalidArgument when it asks for more than the model's context.
absl::Status TruncatePrompts(const ModelAssets& assets, ApiRequest& api);

}  // namespace tandem::router
