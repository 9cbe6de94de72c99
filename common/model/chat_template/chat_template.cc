#include "common/model/chat_template/chat_template.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/model/chat_template/evaluator.h"
#include "common/model/chat_template/parser.h"

namespace tandem::model {

using chat_template::FromJson;
using chat_template::Value;

ChatTemplate::ChatTemplate(std::unique_ptr<chat_template::Template> parsed,
                           const TemplateLimits& limits)
    : template_(std::move(parsed)), limits_(limits) {}
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(absl::string_view source,
                                                                  const TemplateLimits& limits) {
  ASSIGN_OR_RETURN(auto parsed, chat_template::ParseTemplate(source, limits));
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(parsed), limits));
}

absl::StatusOr<std::string> ChatTemplate::Render(const RenderInput& input) const {
  absl::flat_hash_map<std::string, Value> globals;
  const std::pair<const char*, const nlohmann::ordered_json*> documents[] = {
      {"messages", &input.messages}, {"tools", &input.tools}, {"documents", &input.documents}};
  for (const auto& [name, json] : documents) {
    ASSIGN_OR_RETURN(globals[name], FromJson(*json, limits_.value_depth_max));
  }
  globals["add_generation_prompt"] = Value(input.add_generation_prompt);
  globals["bos_token"] = Value(input.bos_token);
  globals["eos_token"] = Value(input.eos_token);
  if (!input.extra.is_null() && !input.extra.is_object()) {
    return absl::InvalidArgumentError("chat template arguments: expected a JSON object");
  }
  for (const auto& [name, json] : input.extra.items()) {
    ASSIGN_OR_RETURN(globals[name], FromJson(json, limits_.value_depth_max));
  }
  TemplateLimits limits = limits_;
  limits.steps_max = std::min(limits.steps_max, input.steps_max.value_or(limits.steps_max));
  return chat_template::Evaluator(limits, input.now).Render(*template_, std::move(globals));
}

}  // namespace tandem::model
