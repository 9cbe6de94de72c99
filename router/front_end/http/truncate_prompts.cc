#include "router/front_end/http/truncate_prompts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::router {
namespace {

// The longest prompt, in tokens, that leaves room in the context for the answer.
int64_t Room(const v1::GenerateRequest& request, int64_t context_tokens) {
  const bool given = request.stop().has_max_tokens();
  const int64_t answer = std::max<int64_t>(given ? request.stop().max_tokens() : 1, 1);
  return std::max<int64_t>(context_tokens - answer, 1);
}

}  // namespace

absl::Status TruncatePrompts(const ModelAssets& assets, ApiRequest& api) {
  if (!api.truncate_prompt_tokens.has_value()) return absl::OkStatus();
  const int64_t context = assets.identity.context_tokens;
  if (*api.truncate_prompt_tokens > context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "truncate_prompt_tokens: ", *api.truncate_prompt_tokens,
        ", expected at most the context of ", assets.identity.served_name(), ", ", context));
  }
  for (v1::GenerateRequest& request : api.requests) {
    if (request.has_text()) {
      const std::vector<TokenId> ids = assets.tokenizer->Encode(request.text());
      request.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
    }
    const int64_t kept =
        *api.truncate_prompt_tokens == -1 ? Room(request, context) : *api.truncate_prompt_tokens;
    auto& ids = *request.mutable_tokens()->mutable_ids();
    const int64_t cut = std::max<int64_t>(ids.size() - kept, 0);
    ids.erase(ids.begin(), ids.begin() + cut);
  }
  return absl::OkStatus();
}

}  // namespace tandem::router
