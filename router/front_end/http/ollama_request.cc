#include "router/front_end/http/ollama_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/request/parameter_table.h"
#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/completion_request.h"
#include "router/front_end/http/json_fields.h"
#include "router/front_end/http/request_fields.h"
#include "router/front_end/http/sampling_fields.h"

namespace tandem::router {
namespace {

bool GivesZero(const Json& body, absl::string_view name) {
  const auto found = body.find(name);
  if (found == body.end()) return false;
  return *found == 0 || *found == "0" || *found == "0s" || *found == "0m";
}

// How long the answer may be: -1 and -2 mean what the context holds, as no limit does.
void ReadLength(Fields& options, Json& chat) {
  const auto length = options.Integer("num_predict", {-2, std::numeric_limits<int32_t>::max()});
  if (!length.has_value()) return;
  if (*length == 0) options.Fault("num_predict", "at least 1, or -1 or -2 for no limit");
  if (*length > 0) chat["max_tokens"] = *length;
}

// Ollama's penalties look at the last `repeat_last_n` tokens, ours at all: -1 there.
void ReadPenaltyWindow(Fields& options, const Json& chat) {
  const auto is = [&](const char* name, int neutral) {
    const auto found = chat.find(name);
    return found == chat.end() || *found == neutral;
  };
  const bool none =
      is("repetition_penalty", 1) && is("presence_penalty", 0) && is("frequency_penalty", 0);
  if (none) return options.Ignore({"repeat_last_n"});
  options.Unserved("repeat_last_n", -1);
}

absl::Status ReadOptions(Fields& fields, bool strict, Json& chat) {
  const Json* object = fields.Object("options");
  if (object == nullptr) return fields.status();
  Fields options(*object, "options");
  CopySamplingFields(options, request::kOllama, chat);
  ReadLength(options, chat);
  ReadPenaltyWindow(options, chat);
  options.Integer("num_ctx", {1, std::numeric_limits<int32_t>::max()});
  // Samplers that are not here, with the value that turns each off.
  options.Unserved("typical_p", 1);
  options.Unserved("tfs_z", 1);
  options.Unserved("mirostat", 0);
  // These concern the machine, or what happens once a context is full: a Tandem answer ends there.
  options.Ignore({"num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram",
                  "vocab_only", "use_mmap", "use_mlock", "f16_kv", "mirostat_tau", "mirostat_eta",
                  "penalize_newline"});
  return options.Finish(strict);
}

void ReadFormat(Fields& fields, Json& chat) {
  const Json* format = fields.Any("format");
  if (format == nullptr || *format == "") return;
  if (*format == "json") {
    chat["response_format"] = {{"type", "json_object"}};
  } else if (format->is_object()) {
    chat["guided_json"] = *format;
  } else {
    fields.Fault("format", "\"json\" or a JSON Schema as an object");
  }
}

// What /api/chat and /api/generate share, as the beginning of a chat's body.
absl::StatusOr<Json> ReadShared(Fields& fields, const ModelAssets& assets, bool strict) {
  Json chat = Json::object();
  if (const auto model = fields.String("model")) {
    ASSIGN_OR_RETURN(chat["model"], OllamaModelName(*model, assets));
  }
  chat["stream"] = fields.Bool("stream").value_or(true);
  CopyServingFields(fields, chat);
  RETURN_IF_ERROR(ReadOptions(fields, strict, chat));
  ReadFormat(fields, chat);
  // A prompt that is too long: Ollama cuts it, Tandem where it is asked to.
  if (fields.Bool("truncate").value_or(false)) chat["truncate_prompt_tokens"] = -1;
  fields.Unserved("think");
  fields.Unserved("images");
  fields.Unserved("logprobs");
  fields.Unserved("top_logprobs", 0);
  fields.Bool("strict");
  fields.Ignore({"keep_alive", "shift"});
  RETURN_IF_ERROR(fields.status());
  return chat;
}

// Ollama's message as OpenAI's: calls have a type there, and a tool's answer its tool's name.
absl::StatusOr<Json> ReadMessage(const Json& object, const std::string& path) {
  if (!object.is_object()) return object;  // the chat's reader refuses it
  Fields fields(object, path);
  fields.Unserved("images");
  RETURN_IF_ERROR(fields.status());
  constexpr std::pair<const char*, const char*> kMembers[] = {{"role", "role"},
                                                              {"content", "content"},
                                                              {"tool_calls", "tool_calls"},
                                                              {"name", "name"},
                                                              {"tool_name", "name"},
                                                              {"tool_call_id", "tool_call_id"},
                                                              {"thinking", "reasoning_content"}};
  Json message = Json::object();
  for (const auto& [ollamas, chats] : kMembers) {
    if (const Json* value = fields.Any(ollamas)) message[chats] = *value;
  }
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return message;
  for (Json& call : *calls) {
    if (call.is_object() && !call.contains("type")) call["type"] = "function";
  }
  return message;
}

absl::StatusOr<ApiRequest> ReadAsChat(const Json& chat, const ModelAssets& assets, ApiKind kind,
                                      absl::Time now) {
  absl::StatusOr<ApiRequest> api = ReadChat(chat, assets, now, /*strict=*/false);
  if (!api.ok()) return ToOllamaFieldNames(api.status(), kind);
  api->kind = kind;
  api->leaves_answer = true;
  return api;
}

absl::StatusOr<ApiRequest> ReadRaw(Json chat, std::string prompt) {
  chat["prompt"] = std::move(prompt);
  absl::StatusOr<ApiRequest> api = ReadCompletion(chat, /*strict=*/false);
  if (!api.ok()) return ToOllamaFieldNames(api.status(), ApiKind::kOllamaGenerate);
  // A completion has a limit of its own where none is given.
  if (!chat.contains("max_tokens")) api->requests[0].mutable_stop()->clear_max_tokens();
  api->kind = ApiKind::kOllamaGenerate;
  api->leaves_answer = true;
  return api;
}

// The name that the client used, which the answer repeats.
void KeepName(const Json& body, absl::StatusOr<ApiRequest>& api) {
  if (!api.ok()) return;
  const auto model = body.find("model");
  api->model = model != body.end() && model->is_string() ? model->get<std::string>() : "";
}

}  // namespace

absl::StatusOr<std::string> OllamaModelName(const std::string& name, const ModelAssets& assets) {
  const ModelIdentity& model = assets.identity;
  if (model.Serves(name)) return name;
  std::string bare(absl::StripSuffix(name, ":latest"));
  if (model.Serves(bare)) return bare;
  return model.NotServed(name);
}

absl::Status ToOllamaFieldNames(const absl::Status& status, ApiKind kind) {
  if (kind == ApiKind::kOllamaGenerate) {
    const absl::Status named = RenameField(status, {{"messages", "prompt"}});
    if (named.message() != status.message()) return named;
  }
  static const auto* const names = [] {
    auto* list = new FieldNames{{"response_format", "format"},
                                {"guided_json", "format"},
                                {"truncate_prompt_tokens", "truncate"},
                                {"max_tokens", "options.num_predict"}};
    request::ForEachParameter([&](const auto& row) {
      const std::string name(row.about.name);
      if (row.about.apis & request::kOllama) list->emplace_back(name, "options." + name);
    });
    return list;
  }();
  return RenameField(status, *names);
}

std::optional<std::string> OllamaLoadReason(const Json& body) {
  for (const char* name : {"messages", "prompt"}) {
    const auto found = body.find(name);
    if (found != body.end() && !found->empty() && *found != "") return std::nullopt;
  }
  return GivesZero(body, "keep_alive") ? "unload" : "load";
}

absl::Status CheckOllamaLoad(const Json& body, ApiKind kind) {
  Fields fields(body);
  for (const char* name : {"stream", "strict", "truncate"}) fields.Bool(name);
  fields.Object("options");
  if (kind == ApiKind::kOllamaGenerate) {
    for (const char* name : {"prompt", "system"}) fields.String(name);
    fields.Bool("raw");
    return fields.status();
  }
  for (const char* name : {"messages", "tools"}) {
    const Json* list = fields.Any(name);
    if (list == nullptr) continue;
    const bool objects = list->is_array() && std::all_of(list->begin(), list->end(),
                                                         [](auto& one) { return one.is_object(); });
    if (!objects) fields.Fault(name, "a list of objects");
  }
  return fields.status();
}

absl::StatusOr<ApiRequest> ReadOllamaChat(const Json& body, const ModelAssets& assets,
                                          const OllamaReading& reading) {
  Fields fields(body);
  ASSIGN_OR_RETURN(Json chat, ReadShared(fields, assets, reading.strict));
  const Json* messages = fields.Any("messages");
  if (messages != nullptr && messages->is_array()) {
    Json& list = chat["messages"] = Json::array();
    for (size_t i = 0; i < messages->size(); ++i) {
      ASSIGN_OR_RETURN(Json message,
                       ReadMessage((*messages)[i], absl::StrCat("messages[", i, "]")));
      list.push_back(std::move(message));
    }
  } else if (messages != nullptr) {
    fields.Fault("messages", "a list of messages");
  }
  if (const Json* tools = fields.Any("tools")) chat["tools"] = *tools;
  RETURN_IF_ERROR(fields.Finish(reading.strict));
  absl::StatusOr<ApiRequest> api = ReadAsChat(chat, assets, ApiKind::kOllamaChat, reading.now);
  KeepName(body, api);
  return api;
}

absl::StatusOr<ApiRequest> ReadOllamaGenerate(const Json& body, const ModelAssets& assets,
                                              const OllamaReading& reading) {
  Fields fields(body);
  ASSIGN_OR_RETURN(Json chat, ReadShared(fields, assets, reading.strict));
  std::string prompt = fields.String("prompt").value_or("");
  const std::string system = fields.String("system").value_or("");
  const bool raw = fields.Bool("raw").value_or(false);
  fields.Unserved("suffix");
  fields.Unserved("template");
  fields.Unserved("context");
  if (raw && !system.empty()) fields.Fault("system", "none beside \"raw\": true");
  RETURN_IF_ERROR(fields.Finish(reading.strict));
  absl::StatusOr<ApiRequest> api;
  if (raw) {
    api = ReadRaw(std::move(chat), std::move(prompt));
  } else {
    Json& list = chat["messages"] = Json::array();
    if (!system.empty()) list.push_back({{"role", "system"}, {"content", system}});
    list.push_back({{"role", "user"}, {"content", std::move(prompt)}});
    api = ReadAsChat(chat, assets, ApiKind::kOllamaGenerate, reading.now);
    if (!api.ok()) return RenameField(api.status(), {{"messages", "prompt"}});
  }
  KeepName(body, api);
  return api;
}

}  // namespace tandem::router
