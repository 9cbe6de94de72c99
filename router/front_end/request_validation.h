// Turns a client's GenerateRequest into the RequestInput that the core accepts: checks every field
// and fills in every default. Both front ends use it, so both refuse the same requests.
// Thread safety: pure functions (the Random is the caller's).
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/runtime/random.h"
#include "router/core/request_input.h"
#include "router/fleet/model_identity.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

inline constexpr size_t kRequestIdBytesMax = 128;
inline constexpr size_t kCacheSaltBytesMax = 1024;
inline constexpr int32_t kBeamTokensMax = 65535;
inline constexpr int kBadWordTextsMax = 256;
inline constexpr int64_t kBadWordBytesMax = 256;

// The payload of the status of a request that exceeds the context, for APIs with words of their
// own: "PROMPT MAXIMUM", in tokens, of a prompt that is too long, and "PROMPT MAX_TOKENS CONTEXT"
// of one with too many max_tokens.
inline constexpr absl::string_view kContextExcessPayload = "tandem/context-excess";

// Whether the client wants only its prompt back: max_tokens 0 together with echo or
// prompt_logprobs. Each of its sequences runs for one token, which the client does not see.
bool IsPromptOnly(const v1::GenerateRequest& request);

// Whether the client has the beginning of an answer already: resume_from_token or
// resume_from_tokens names a token.
bool Resumes(const v1::GenerateRequest& request);

// How many sequences the request runs at a time. 1 where its fields are out of range:
// ValidateEnvelope then refuses it.
int32_t SequencesOf(const v1::GenerateRequest& request);

// Checks what does not need the tokenized prompt: request_id, model, n, cache_salt, and that there
// is a prompt. kInvalidArgument names the field; kNotFound names both models.
absl::Status ValidateEnvelope(const v1::GenerateRequest& request, const ModelIdentity& model);

// Checks the whole request. `prompt` holds the prompt's token ids. Draws a request id and a seed
// where the client gave none. Errors: those of ValidateEnvelope, and kInvalidArgument for an empty
// prompt, an unknown token id, a prompt that leaves no room in the context, max_tokens beyond the
// context, or a parameter out of range. Each message names the value and what was expected.
absl::StatusOr<RequestInput> ValidateRequest(const v1::GenerateRequest& request,
                                             std::vector<TokenId> prompt,
                                             const ModelIdentity& model,
                                             const std::vector<TokenId>& eos_token_ids,
                                             Random& random);

}  // namespace tandem::router
