#include "router/front_end/http/answer_format.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "router/front_end/http/json_fields.h"
#include "router/front_end/http/logprobs_json.h"
#include "router/front_end/http/openai_error.h"

namespace tandem::router {

AnswerFormat::AnswerFormat(ApiRequest api, AnswerHead head, const model::Tokenizer& tokenizer)
    : api_(std::move(api)),
      head_(std::move(head)),
      tokenizer_(tokenizer),
      prompts_(api_.prompts),
      choices_(api_.prompts * static_cast<size_t>(api_.n)),
      cursor_(api_.event_id_begin, choices_.size(), api_.received) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].prompt = i / static_cast<size_t>(api_.n);
  }
}

std::optional<size_t> AnswerFormat::IndexOf(size_t prompt, int32_t sequence) const {
  if (sequence >= api_.n) return std::nullopt;
  return prompt * static_cast<size_t>(api_.n) + static_cast<size_t>(sequence);
}

void AnswerFormat::AddText(size_t prompt, int32_t sequence_index, absl::string_view text,
                           std::string* events) {
  static const auto* const no_tokens = new Tokens();
  if (const auto index = IndexOf(prompt, sequence_index)) {
    OnDelta(*index, text, *no_tokens, events);
  }
}

void AnswerFormat::Add(size_t prompt, const v1::GenerateResponse& part, std::string* events) {
  Prompt& its_prompt = prompts_[prompt];
  switch (part.part_case()) {
    case v1::GenerateResponse::kStarted: {
      const auto& ids = part.started().prompt_token_ids();
      its_prompt.token_ids.assign(ids.begin(), ids.end());
      usage_.prompt_tokens += part.started().prompt_tokens();
      if (api_.tells_tier) service_tier_ = part.started().service_tier();
      for (int32_t i = 0; i < api_.n; ++i) OnStarted(*IndexOf(prompt, i), events);
      break;
    }
    case v1::GenerateResponse::kPromptLogprobs: {
      // Those of a long prompt come in several parts.
      const bool first_part = !std::exchange(its_prompt.scored, true);
      if (!echoes_logprobs()) {
        AddPromptLogprobs({tokenizer_, api_.tokens_as_ids}, part.prompt_logprobs().tokens(),
                          its_prompt.logprobs);
      }
      for (int32_t i = 0; i < api_.n; ++i) {
        OnPromptLogprobs(*IndexOf(prompt, i), part.prompt_logprobs(), first_part);
      }
      break;
    }
    case v1::GenerateResponse::kDelta: {
      const v1::Delta& delta = part.delta();
      const auto index = IndexOf(prompt, delta.sequence_index());
      if (!index.has_value()) break;
      for (const auto& token : delta.tokens()) {
        choices_[*index].token_ids.push_back(token.token_id());
      }
      tokens_so_far_ += delta.tokens_size();
      OnDelta(*index, delta.text(), delta.tokens(), events);
      break;
    }
    case v1::GenerateResponse::kFinished: {
      const v1::Finished& finished = part.finished();
      const auto index = IndexOf(prompt, finished.sequence_index());
      if (!index.has_value()) break;
      Choice& choice = choices_[*index];
      choice.reason = finished.reason();
      choice.stop_string = finished.stop_string();
      if (finished.has_stop_token_id()) choice.stop_token_id = finished.stop_token_id();
      if (needs_timing()) choice.finished = finished;
      // Of the answers to one prompt, one has its tokens.
      usage_.cached_tokens += finished.usage().cached_tokens();
      usage_.completion_tokens += finished.usage().output_tokens();
      OnFinished(*index, events);
      break;
    }
    case v1::GenerateResponse::PART_NOT_SET:
      break;
  }
}

Json AnswerFormat::UsageJson(const UsageTotals& usage) const {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

UsageTotals AnswerFormat::UsageSoFar() const {
  UsageTotals usage = usage_;
  usage.completion_tokens = tokens_so_far_;
  return usage;
}

Json AnswerFormat::TimingJson() const {
  Json list = Json::array();
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const v1::Finished& finished = choices_[i * static_cast<size_t>(api_.n)].finished;
    const v1::Timing& timing = finished.timing();
    const v1::Route& route = finished.route();
    const auto sources = [](const v1::TokensBySource& tokens) -> Json {
      return {{"computed", tokens.computed()},   {"received", tokens.received()},
              {"cached", tokens.cached()},       {"from_host_memory", tokens.from_host_memory()},
              {"from_disk", tokens.from_disk()}, {"fetched", tokens.fetched()}};
    };
    list.push_back({{"queue_ms", timing.queue_ms()},
                    {"reserve_ms", timing.reserve_ms()},
                    {"prefill_ms", timing.prefill_ms()},
                    {"first_token_ms", timing.first_token_ms()},
                    {"first_token_predicted_ms", timing.first_token_predicted_ms()},
                    {"install_ms", timing.install_ms()},
                    {"total_ms", timing.total_ms()},
                    {"gap_ms", timing.gap_ms()},
                    {"gaps_dropped", timing.gaps_dropped()},
                    {"prefill_node", route.prefill_node()},
                    {"decode_node", route.decode_node()},
                    {"attempts", route.attempts()},
                    {"prefill_tokens", sources(route.prefill_tokens())},
                    {"decode_tokens", sources(route.decode_tokens())},
                    {"kv_bytes_moved", route.kv_bytes_moved()},
                    {"kv_transfer_ms", route.kv_transfer_ms()},
                    {"kv_receive_ms", route.kv_receive_ms()},
                    {"kv_hidden_ms", route.kv_hidden_ms()},
                    {"kv_beyond_ms", route.kv_beyond_ms()},
                    {"transport", route.transport()}});
    if (route.mixed_numerics()) list.back()["mixed_numerics"] = true;
  }
  return list;
}

void AnswerFormat::BeginEvent(std::string& events) {
  if (event_begin_.empty()) {
    event_begin_ = "data: {\"id\":";
    AppendJsonString(head_.id, event_begin_);
    absl::StrAppend(&event_begin_, ",\"object\":\"", chunk_name(),
                    "\",\"created\":", head_.created_s, ",\"model\":");
    AppendJsonString(head_.model, event_begin_);
    event_begin_ += ",\"system_fingerprint\":";
    AppendJsonString(head_.fingerprint, event_begin_);
    if (!service_tier_.empty())
      absl::StrAppend(&event_begin_, ",\"service_tier\":\"", service_tier_, "\"");
    event_begin_ += ",\"choices\":[{";
  }
  cursor_.AppendId(events);
  events += event_begin_;
}

void AnswerFormat::EndEvent(std::string& events) const {
  if (api_.continuous_usage) {
    absl::StrAppend(&events, "}],\"usage\":", JsonText(UsageJson(UsageSoFar())), "}\n\n");
  } else {
    events += api_.include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n";
  }
}

void AnswerFormat::EndEvents(std::string& events) {
  if ((api_.include_usage || api_.timing) && cursor_.NewEvent()) {
    Json object = {{"id", head_.id},
                   {"object", chunk_name()},
                   {"created", head_.created_s},
                   {"model", head_.model},
                   {"system_fingerprint", head_.fingerprint},
                   {"choices", Json::array()}};
    if (!service_tier_.empty()) object["service_tier"] = service_tier_;
    if (api_.include_usage) object["usage"] = UsageJson(usage_);
    if (api_.timing) object["timing"] = TimingJson();
    cursor_.AppendId(events);
    absl::StrAppend(&events, "data: ", JsonText(object), "\n\n");
  }
  absl::StrAppend(&events, "data: [DONE]\n\n");
}

void AnswerFormat::FailEvents(const absl::Status& status, std::string& events) {
  absl::StrAppend(&events, "data: {\"error\":", ErrorJson(HttpStatusOf(status), status),
                  "}\n\ndata: [DONE]\n\n");
}

std::string AnswerFormat::ToJson() {
  Json choices = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) choices.push_back(TakeChoice(i));
  Json object = {{"id", head_.id},
                 {"object", object_name()},
                 {"created", head_.created_s},
                 {"model", head_.model},
                 {"system_fingerprint", head_.fingerprint},
                 {"choices", std::move(choices)},
                 {"usage", UsageJson(usage_)}};
  if (api_.kind == ApiKind::kChat && !prompts_[0].logprobs.is_null()) {
    object["prompt_logprobs"] = std::move(prompts_[0].logprobs);
  }
  if (api_.kind == ApiKind::kChat && api_.return_token_ids) {
    object["prompt_token_ids"] = prompts_[0].token_ids;
  }
  if (!service_tier_.empty()) object["service_tier"] = service_tier_;
  if (api_.timing) object["timing"] = TimingJson();
  return JsonText(object);
}

std::string AnswerFormat::FinishReasonText(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_ABORTED:
      return "abort";
    default:
      return "error";
  }
}

Json AnswerFormat::StopReason(const Choice& choice) {
  if (!choice.stop_string.empty()) return choice.stop_string;
  return choice.stop_token_id.has_value() ? Json(*choice.stop_token_id) : Json();
}

Json AnswerFormat::TokenIdsJson(const Tokens& tokens, size_t skipped) {
  Json ids = Json::array();
  for (int i = static_cast<int>(skipped); i < tokens.size(); ++i) {
    ids.push_back(tokens[i].token_id());
  }
  return ids;
}

}  // namespace tandem::router
