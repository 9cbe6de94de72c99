// From the wire to an admissible request: every field checked, every default filled in.
// Thread safety: pure functions (the Random is the caller's).
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/runtime/random.h"
#include "router/core/router_core.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

inline constexpr size_t kRequestIdBytesMax = 128;
inline constexpr size_t kCacheSaltBytesMax = 1024;
inline constexpr int32_t kSequencesMax = 128;  // n, best_of: as OpenAI's API bounds them
inline constexpr int32_t kBeamWidthMax = 64;
inline constexpr int32_t kBeamTokensMax = 65535;
inline constexpr int kBadWordTextsMax = 256;
inline constexpr int64_t kBadWordBytesMax = 256;

// A request of no answer, only of its prompt: max_tokens 0 together with echo or prompt_logprobs.
// Its sequences run for one token, which is not shown.
bool IsPromptOnly(const v1::GenerateRequest& request);

// What can be checked before the prompt is tokenized: request_id, model, n, cache_salt, and that a
// prompt is given. kInvalidArgument names the field; kNotFound names both models.
absl::Status ValidateEnvelope(const v1::GenerateRequest& request, const ModelIdentity& model);

// The whole request; `prompt` is its prompt in token ids, however it was given. Draws a request id
// and a seed where the client gave none. Errors as above, and kInvalidArgument for an empty prompt,
// unknown token ids, a prompt that leaves no room in the context, max_tokens beyond it, or a
// parameter out of its range: each names the value and what was expected.
absl::StatusOr<RequestInput> ValidateRequest(const v1::GenerateRequest& request,
                                             std::vector<TokenId> prompt,
                                             const ModelIdentity& model,
                                             const std::vector<TokenId>& eos_token_ids,
                                             Random& random);

}  // namespace tandem::router
