#include "router/front_end/http/truncate_prompts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::router {
namespace {

// The longest prompt, in tokens, that leaves room in the context for the answer.
int64_t PromptMax(const ApiRequest& api, const v1::GenerateRequest& request, FleetRoom room) {
  const int64_t least = api.leaves_answer ? std::min(room.context / 4, kAnswerShareMax) : 1;
  const bool given = request.stop().has_max_tokens();
  const int64_t answer = std::max<int64_t>(given ? request.stop().max_tokens() : least, 1);
  return std::max<int64_t>(std::min(room.context - answer, room.prompt), 1);
}

bool IsOllamas(const ApiRequest& api) {
  return api.kind == ApiKind::kOllamaChat || api.kind == ApiKind::kOllamaGenerate;
}

// Makes token ids of a text.
void Tokenize(const ModelAssets& assets, v1::GenerateRequest& request) {
  if (!request.has_text()) return;
  const std::vector<TokenId> ids = assets.tokenizer->Encode(request.text());
  request.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
}

// Clears a limit that `context_tokens` do not hold beside the prompt. REQUIRES: a limit is given.
void CapAnswer(const ModelAssets& assets, int64_t context_tokens, v1::GenerateRequest& request) {
  // What is longer is refused without being tokenized.
  if (static_cast<int64_t>(request.text().size()) > assets.prompt_bytes_max) return;
  Tokenize(assets, request);
  if (request.stop().max_tokens() > context_tokens - request.tokens().ids_size()) {
    request.mutable_stop()->clear_max_tokens();
  }
}

}  // namespace

absl::Status TruncatePrompts(const ModelAssets& assets, FleetRoom room, ApiRequest& api) {
  const std::optional<int32_t> wanted = api.truncate_prompt_tokens;
  if (wanted.has_value() && *wanted > assets.identity.context_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("truncate_prompt_tokens: ", *wanted, ", expected at most the context of ",
                     assets.identity.served_name(), ", ", assets.identity.context_tokens));
  }
  room.context = std::min<int64_t>(room.context, assets.identity.context_tokens);
  if (wanted == -1) api.fitted_to = room;
  for (v1::GenerateRequest& request : api.requests) {
    if (IsOllamas(api) && request.stop().has_max_tokens()) api.fitted_to = room;
    // No prompt leaves room for so long an answer: it takes what there is.
    if (IsOllamas(api) && request.stop().max_tokens() >= room.context) {
      request.mutable_stop()->clear_max_tokens();
    }
    if (wanted.has_value()) {
      Tokenize(assets, request);
      const int64_t kept = *wanted == -1 ? PromptMax(api, request, room) : *wanted;
      auto& ids = *request.mutable_tokens()->mutable_ids();
      const int64_t cut = std::max<int64_t>(ids.size() - kept, 0);
      ids.erase(ids.begin(), ids.begin() + cut);
    }
    if (IsOllamas(api) && request.stop().has_max_tokens()) {
      CapAnswer(assets, room.context, request);
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::router
