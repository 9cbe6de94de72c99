// The endpoints of Ollama's API: answering, and saying what is served. A router does not load,
// pull, copy or delete models. Contract: router/front_end/http/http_api.h.
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "router/front_end/http/http_api.h"
#include "router/front_end/http/json_fields.h"
#include "router/front_end/http/ollama_format.h"
#include "router/front_end/http/ollama_request.h"
#include "router/front_end/http/openai_error.h"

namespace tandem::router {
namespace {

// The version of Ollama whose members /api/show and answers have. Clients refuse older ones.
constexpr char kOllamaVersion[] = "0.6.4";

// Whether `model` and `name` are absent or empty.
bool LacksModel(const Json& body) {
  for (const char* member : {"model", "name"}) {
    const auto name = body.find(member);
    if (name != body.end() && !name->is_null() && *name != "") return false;
  }
  return true;
}

}  // namespace

void HttpApi::OllamaAnswer(Call& call, ApiKind kind) {
  const absl::StatusOr<Json> body = ParseBody(call);
  if (!body.ok()) return Reply(call, ErrorReply(body.status()));
  const ModelAssets& assets = deps_.session.assets;
  if (const auto reason = OllamaLoadReason(*body)) {
    const absl::StatusOr<std::string> name = OllamaNameIn(*body);
    if (!name.ok()) return Reply(call, ErrorReply(name.status()));
    const absl::Status checked = CheckOllamaLoad(*body, kind);
    if (!checked.ok()) return Reply(call, ErrorReply(checked));
    return Reply(call, {.body = JsonText(OllamaLoaded(kind, *name, *reason, call.now))});
  }
  const OllamaReading reading = {call.now, AsksForStrict(call, *body)};
  absl::StatusOr<ApiRequest> api = kind == ApiKind::kOllamaChat
                                       ? ReadOllamaChat(*body, assets, reading)
                                       : ReadOllamaGenerate(*body, assets, reading);
  if (!api.ok()) return Reply(call, ErrorReply(api.status()));
  Generate(call, *std::move(api), "ollama-");
}

void HttpApi::OllamaChat(Call& call) { OllamaAnswer(call, ApiKind::kOllamaChat); }

void HttpApi::OllamaGenerate(Call& call) { OllamaAnswer(call, ApiKind::kOllamaGenerate); }

// The name in a body, checked: `model`, or `name` as older clients call it.
absl::StatusOr<std::string> HttpApi::OllamaNameIn(const Json& body) const {
  Fields fields(body);
  const auto older = fields.String("name");
  const std::string name =
      fields.String("model").value_or(older.value_or(deps_.session.assets.identity.served_name()));
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(OllamaModelName(name, deps_.session.assets).status());
  return name;
}

// A router has no weights: sizes are 0, and the digest is the checkpoint's fingerprint.
Json HttpApi::OllamaModel() const {
  const ModelAssets& assets = deps_.session.assets;
  const std::string& name = assets.identity.served_name();
  return {{"name", name},
          {"model", name},
          {"modified_at", OllamaTime(absl::FromUnixSeconds(started_s_))},
          {"size", 0},
          {"digest", assets.identity.fingerprint},
          {"details",
           {{"parent_model", ""},
            {"format", ""},
            {"family", assets.architecture},
            {"families", Json::array({assets.architecture})},
            {"parameter_size", ""},
            {"quantization_level", ""}}}};
}

void HttpApi::OllamaTags(Call& call) {
  Reply(call, {.body = JsonText(Json{{"models", Json::array({OllamaModel()})}})});
}

void HttpApi::OllamaRunning(Call& call) {
  Json model = OllamaModel();
  model.erase("modified_at");
  // It stays loaded as long as its nodes run.
  model["expires_at"] = "9999-12-31T23:59:59Z";
  model["size_vram"] = 0;
  model["context_length"] = deps_.context_tokens();
  Reply(call, {.body = JsonText(Json{{"models", Json::array({model})}})});
}

void HttpApi::OllamaVersion(Call& call) {
  Reply(call,
        {.body = JsonText(Json{{"version", kOllamaVersion}, {"tandem", std::string(kVersion)}})});
}

void HttpApi::OllamaShow(Call& call) {
  const absl::StatusOr<Json> body = ParseBody(call);
  if (body.ok() && LacksModel(*body)) {
    return Reply(call, ErrorReply(400, "model is required"));  // as Ollama says it
  }
  const absl::StatusOr<std::string> name = body.ok() ? OllamaNameIn(*body) : body.status();
  if (!name.ok()) return Reply(call, ErrorReply(name.status()));
  const ModelAssets& assets = deps_.session.assets;
  const Json model = OllamaModel();
  Json capabilities = Json::array({"completion"});
  if (assets.shows_tools) capabilities.push_back("tools");
  const Json shown = {{"modelfile", ""},
                      {"parameters", ""},
                      {"template", ""},
                      {"details", model["details"]},
                      {"model_info",
                       {{"general.architecture", assets.architecture},
                        {"general.basename", assets.identity.name},
                        {assets.architecture + ".context_length", deps_.context_tokens()},
                        {assets.architecture + ".vocab_size", assets.identity.vocab_size}}},
                      {"capabilities", capabilities},
                      {"modified_at", model["modified_at"]}};
  Reply(call, {.body = JsonText(shown)});
}

}  // namespace tandem::router
