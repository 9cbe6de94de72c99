#include "router/front_end/model_assets.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/byte_vocabulary.h"
#include "common/model/checkpoint.h"
#include "common/model/hash_model.h"
#include "router/front_end/call_ids.h"
#include "router/front_end/json_body.h"
#include "router/front_end/long_work.h"

namespace tandem::router {
namespace {

// Normalization shortens a text to no less than this fraction.
constexpr int64_t kNormalisationMax = 4;

std::unique_ptr<guided::ConstraintChecker> NewConstraintChecker(const ModelAssets& assets) {
  return std::make_unique<guided::ConstraintChecker>(guided::Vocabulary::FromTokenizer(
      *assets.tokenizer, assets.identity.vocab_size, assets.eos_token_ids));
}

int64_t PromptBytesMax(const ModelAssets& assets) {
  size_t longest = 1;
  for (TokenId id = 0; id < assets.identity.vocab_size; ++id)
    longest = std::max(longest, assets.tokenizer->TokenBytes(id).size());
  return kNormalisationMax * assets.identity.context_tokens * static_cast<int64_t>(longest);
}

// The client's list of tools. The parser bounds its depth, which the functions that walk it rely
// on.
absl::StatusOr<Json> ReadTools(absl::string_view text) {
  // A list is not a body, so it is read as a member of one: the only one, lest a text close the
  // list and add others.
  const JsonLimits limits;
  absl::StatusOr<Json> body = ParseJsonBody(absl::StrCat("{\"tools\":", text, "}"), limits);
  if (body.ok() && body->size() == 1 && (*body)["tools"].is_array()) {
    return std::move((*body)["tools"]);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("chat.tools_json: expected a JSON array, at most ", limits.depth_max - 1,
                   " levels deep, whose objects name each member once"));
}

// No more than the bytes of the JSON text that `json` was read from. REQUIRES: its depth is
// bounded.
size_t LeastBytesOf(const nlohmann::ordered_json& json) {
  if (json.is_string()) return json.get_ref<const std::string&>().size();
  if (!json.is_structured()) return 1;
  size_t bytes = 0;
  for (const auto& [key, value] : json.items())
    bytes += (json.is_object() ? key.size() : 0) + LeastBytesOf(value);
  return bytes;
}

// Null: there is none, or `fault` says why it cannot be used.
std::unique_ptr<model::ChatTemplate> ParseTemplate(const std::string& source, absl::Status& fault) {
  if (source.empty()) return nullptr;
  auto parsed = model::ChatTemplate::Parse(source);
  if (parsed.ok()) return *std::move(parsed);
  fault = parsed.status();
  return nullptr;
}

// Whether a prompt with a tool names it. A template that cannot be tried is taken to do so.
bool ShowsTools(const model::ChatTemplate* chat_template) {
  if (chat_template == nullptr) return false;
  constexpr char kName[] = "a_tool_to_look_for";
  model::ChatTemplate::RenderInput input;
  input.messages = Json::array({{{"role", "user"}, {"content", "u"}}});
  input.tools =
      Json::array({{{"type", "function"},
                    {"function",
                     {{"name", kName},
                      {"description", ""},
                      {"parameters", {{"type", "object"}, {"properties", Json::object()}}}}}}});
  input.steps_max = ModelAssets::kShortTrialStepsMax;
  const absl::StatusOr<std::string> text = chat_template->Render(input);
  return !text.ok() || absl::StrContains(*text, kName);
}

bool TakesShortIdsOnly(const model::ChatTemplate* chat_template) {
  return chat_template != nullptr &&
         NeedsShortCallIds(*chat_template, ModelAssets::kShortTrialStepsMax);
}

}  // namespace

void ModelAssets::TryChatTemplate() {
  const bool one_for_all = tool_chat_template == nullptr && tool_chat_template_fault.ok();
  shows_tools = ShowsTools((one_for_all ? chat_template : tool_chat_template).get());
  needs_short_ids = TakesShortIdsOnly(chat_template.get());
  tool_needs_short_ids = TakesShortIdsOnly(tool_chat_template.get());
  constexpr size_t kMessageBytes = sizeof(R"({"role":"user","content":""},)") - 1;
  if (chat_template == nullptr && tool_chat_template == nullptr) return;
  model::ChatTemplate::RenderInput input;
  input.messages = nlohmann::ordered_json::array();
  for (size_t bytes = 0; bytes < LongWork::kShortBytesMax; bytes += kMessageBytes) {
    const bool user = input.messages.size() % 2 == 0;
    input.messages.push_back({{"role", user ? "user" : "assistant"}, {"content", ""}});
  }
  input.steps_max = kShortTrialStepsMax;
  renders_shortly = chat_template == nullptr || chat_template->Render(input).ok();
  if (tool_chat_template == nullptr || !renders_shortly) return;
  input.tools = nlohmann::ordered_json::array();
  renders_shortly = tool_chat_template->Render(input).ok();
}

absl::Status ModelAssets::UseChatTemplate(std::string source) {
  ASSIGN_OR_RETURN(chat_template, model::ChatTemplate::Parse(source));
  chat_template_source = std::move(source);
  tool_chat_template = nullptr;
  chat_template_fault = tool_chat_template_fault = absl::OkStatus();
  TryChatTemplate();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ModelAssets>> ModelAssets::Load(const std::string& checkpoint_path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<model::Checkpoint> checkpoint,
                   model::Checkpoint::Open(checkpoint_path));
  auto assets = std::make_unique<ModelAssets>();
  assets->identity = {checkpoint->config().name, checkpoint->fingerprint(),
                      checkpoint->config().vocab_size, checkpoint->config().context_tokens};
  assets->architecture = checkpoint->config().architecture;
  assets->eos_token_ids = checkpoint->stop_token_ids();
  auto tokenizer = model::Tokenizer::Create(checkpoint->tokenizer());
  if (!tokenizer.ok()) {
    return absl::Status(tokenizer.status().code(),
                        absl::StrCat(checkpoint_path, ": ", tokenizer.status().message()));
  }
  assets->tokenizer = *std::move(tokenizer);
  assets->chat_template_source = checkpoint->chat_template();
  assets->chat_template = ParseTemplate(checkpoint->chat_template(), assets->chat_template_fault);
  assets->tool_chat_template =
      ParseTemplate(checkpoint->tool_chat_template(), assets->tool_chat_template_fault);
  assets->TryChatTemplate();
  assets->constraints = NewConstraintChecker(*assets);
  assets->prompt_bytes_max = PromptBytesMax(*assets);
  return assets;
}

absl::StatusOr<std::unique_ptr<ModelAssets>> ModelAssets::ForHashEngine() {
  auto assets = std::make_unique<ModelAssets>();
  assets->identity = {std::string(model::kHashModelName), std::string(model::kHashModelFingerprint),
                      model::kByteVocabularySize, model::kHashModelContextTokens};
  assets->architecture = "hash";
  assets->eos_token_ids = {model::kByteEndToken};
  ASSIGN_OR_RETURN(assets->tokenizer, model::Tokenizer::Create(model::ByteVocabulary()));
  assets->chat_template_source = model::ByteVocabularyChatTemplate();
  ASSIGN_OR_RETURN(assets->chat_template, model::ChatTemplate::Parse(assets->chat_template_source));
  assets->TryChatTemplate();
  assets->constraints = NewConstraintChecker(*assets);
  assets->prompt_bytes_max = PromptBytesMax(*assets);
  return assets;
}

absl::Status ModelAssets::CheckMessages(int64_t messages) const {
  if (messages <= identity.context_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("messages: ", messages, " messages, expected at most ", identity.context_tokens,
                   ": the context of ", identity.served_name(), " holds so many tokens"));
}

absl::StatusOr<std::string> ModelAssets::RenderChat(const v1::ChatMessages& chat,
                                                    absl::Time now) const {
  if (chat.messages().empty()) {
    return absl::InvalidArgumentError("chat.messages: expected at least one message, got none");
  }
  RETURN_IF_ERROR(CheckMessages(chat.messages_size()));
  model::ChatTemplate::RenderInput input;
  input.messages = nlohmann::ordered_json::array();
  for (const v1::ChatMessage& message : chat.messages()) {
    input.messages.push_back({{"role", message.role()}, {"content", message.content()}});
  }
  if (!chat.tools_json().empty()) {
    ASSIGN_OR_RETURN(input.tools, ReadTools(chat.tools_json()));
  }
  input.add_generation_prompt = !chat.no_generation_prompt();
  return RenderChat(std::move(input), now);
}

absl::StatusOr<std::string> ModelAssets::RenderChat(model::ChatTemplate::RenderInput input,
                                                    absl::Time now) const {
  const bool has_tool_template = tool_chat_template != nullptr || !tool_chat_template_fault.ok();
  const bool with_tools = has_tool_template && !input.tools.is_null();
  const model::ChatTemplate* used = (with_tools ? tool_chat_template : chat_template).get();
  const absl::Status& fault = with_tools ? tool_chat_template_fault : chat_template_fault;
  if (used == nullptr && fault.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("chat: model ", identity.served_name(),
                     " brings no chat template; send text or tokens instead"));
  }
  if (used == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("chat: the chat template of model ", identity.served_name(),
                     " cannot be used: ", fault.message(),
                     "; send text or tokens, or give the router another one (--chat-template)"));
  }
  const auto text_of = [this](std::optional<TokenId> id) {
    return id.has_value() ? tokenizer->TokenBytes(*id) : std::string();
  };
  input.bos_token = text_of(tokenizer->bos_token_id());
  input.eos_token = text_of(tokenizer->eos_token_id());
  input.now = now;
  if (with_tools ? tool_needs_short_ids : needs_short_ids) ShortenCallIds(input.messages);
  if (renders_shortly) {
    // Twice the bytes, because what was read may be written differently. A conversation of so many
    // bytes takes no more steps in any case.
    const size_t bytes = LeastBytesOf(input.messages) + LeastBytesOf(input.tools) +
                         LeastBytesOf(input.documents) + LeastBytesOf(input.extra);
    if (bytes <= 2 * LongWork::kShortBytesMax) input.steps_max = kShortRenderStepsMax;
  }
  return used->Render(input);
}

}  // namespace tandem::router
