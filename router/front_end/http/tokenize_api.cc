// The endpoints /tokenize and /detokenize. Contract: router/front_end/http/http_api.h.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/front_end/http/chat_messages.h"
#include "router/front_end/http/http_api.h"
#include "router/front_end/http/json_fields.h"
#include "router/front_end/http/openai_error.h"

namespace tandem::router {

absl::StatusOr<std::string> HttpApi::TokenizeText(const Call& call) const {
  ASSIGN_OR_RETURN(const Json body, ParseBody(call));
  const ModelAssets& assets = deps_.session.assets;
  Fields fields(body);
  RETURN_IF_ERROR(CheckServes(fields.String("model").value_or("")));
  fields.Bool("strict");
  std::string text;
  model::Tokenizer::EncodeOptions options;
  if (fields.Any("messages") != nullptr) {
    if (fields.Any("prompt") != nullptr) fields.Fault("prompt", "none beside messages");
    ASSIGN_OR_RETURN(text, RenderMessages(fields, assets, call.now, true));
    options.add_special_tokens = fields.Bool("add_special_tokens").value_or(false);
  } else {
    // Of the template, which a text has none of.
    fields.Ignore({"tools"});
    fields.Bool("add_generation_prompt");
    const auto prompt = fields.String("prompt");
    if (!prompt.has_value() && fields.status().ok()) fields.Fault("prompt", "a string");
    text = prompt.value_or("");
    options.add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  }
  const bool strings = fields.Bool("return_token_strs").value_or(false);
  RETURN_IF_ERROR(fields.Finish(AsksForStrict(call, body)));
  // Written as text, not as Json: a list of millions of tokens would take gigabytes.
  const std::vector<TokenId> ids = assets.tokenizer->Encode(text, options);
  std::string members = absl::StrCat("{\"count\":", ids.size(), ",\"tokens\":[");
  for (size_t i = 0; i < ids.size(); ++i) absl::StrAppend(&members, i == 0 ? "" : ",", ids[i]);
  members += "],\"token_strs\":";
  if (!strings) return members + "null";
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string token = assets.tokenizer->TokenText(ids[i]);
    absl::StrAppend(&members, i == 0 ? "[" : ",", JsonText(token));
  }
  return members + (ids.empty() ? "[]" : "]");
}

void HttpApi::Tokenize(Call& call) {
  const absl::StatusOr<std::string> members = TokenizeText(call);
  if (!members.ok()) return Reply(call, ErrorReply(members.status()));
  Reply(call, {.body = absl::StrCat(*members, ",\"max_model_len\":", deps_.context_tokens(), "}")});
}

absl::StatusOr<Json> HttpApi::DetokenizeJson(const Call& call) const {
  ASSIGN_OR_RETURN(const Json body, ParseBody(call));
  const ModelAssets& assets = deps_.session.assets;
  Fields fields(body);
  RETURN_IF_ERROR(CheckServes(fields.String("model").value_or("")));
  fields.Bool("strict");
  if (fields.Any("tokens") == nullptr) fields.Fault("tokens", "a list of token ids");
  std::vector<TokenId> ids;
  for (const int32_t id : fields.TokenIds("tokens")) {
    if (id >= assets.identity.vocab_size) {
      fields.Keep(absl::InvalidArgumentError(
          absl::StrCat("tokens: ", id, ", expected one in [0, ", assets.identity.vocab_size, ")")));
    }
    ids.push_back(id);
  }
  const bool skip = fields.Bool("skip_special_tokens").value_or(false);
  RETURN_IF_ERROR(fields.Finish(AsksForStrict(call, body)));
  return Json{{"prompt", assets.tokenizer->Decode(ids, skip)}};
}

void HttpApi::Detokenize(Call& call) {
  const absl::StatusOr<Json> json = DetokenizeJson(call);
  Reply(call, json.ok() ? HttpReply{.body = JsonText(*json)} : ErrorReply(json.status()));
}

}  // namespace tandem::router
