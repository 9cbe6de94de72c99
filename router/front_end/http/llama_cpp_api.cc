// The endpoint that llama.cpp's clients read before they ask: /props. Contract:
// router/front_end/http/http_api.h.
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "common/request/sampling_params.h"
#include "router/front_end/http/http_api.h"

namespace tandem::router {

// What llama.cpp's server says of itself, as far as a router has it: without slots, which a fleet
// has none of, and with the model's name in place of a file.
void HttpApi::LlamaCppProperties(Call& call) {
  const ModelAssets& assets = deps_.session.assets;
  const request::SamplingParams defaults;
  const auto text_of = [&](std::optional<TokenId> id) {
    return id.has_value() ? assets.tokenizer->TokenBytes(*id) : std::string();
  };
  const Json properties = {{"default_generation_settings",
                            {{"n_ctx", deps_.context_tokens()},
                             {"params",
                              {{"temperature", defaults.temperature},
                               {"top_k", defaults.top_k},
                               {"top_p", defaults.top_p},
                               {"min_p", defaults.min_p},
                               {"repeat_penalty", defaults.repetition_penalty},
                               {"presence_penalty", defaults.presence_penalty},
                               {"frequency_penalty", defaults.frequency_penalty}}}}},
                           {"model_path", assets.identity.name},
                           {"model_alias", assets.identity.served_name()},
                           {"chat_template", assets.chat_template_source},
                           {"bos_token", text_of(assets.tokenizer->bos_token_id())},
                           {"eos_token", text_of(assets.tokenizer->eos_token_id())},
                           {"modalities", {{"vision", false}, {"audio", false}}},
                           {"build_info", absl::StrCat("tandem-", kVersion)}};
  Reply(call, {.body = JsonText(properties)});
}

}  // namespace tandem::router
