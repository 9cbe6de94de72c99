// The members of completion and chat requests that are no sampling or stop parameters: ours, and
// those that the request schemas of OpenAI, vLLM and llama.cpp name. Each has one row that says
// what becomes of it. The HTTP front end refuses and ignores by these rows, and docs/PARAMETERS.md
// lists them beside those of parameter_table.h. A test compares the names with the other servers'
// schemas (tests/golden/http/request_schemas.txt).
//
// Thread safety: constants.
#pragma once

#include "absl/strings/string_view.h"
#include "common/request/parameter_table.h"

namespace tandem::request {

enum class Handling {
  kServed,    // the front end's code reads it
  kRefused,   // it asks for something that is not here
  kHarmless,  // no answer depends on it
};

// A member in the APIs of `apis`.
struct RequestMember {
  absl::string_view name;
  unsigned apis;
  Handling handling;
  // What it does, why it is harmless, or what to use in its place.
  absl::string_view note;
  // Of a refused member: a JSON list of values that ask for nothing, which are accepted as null
  // always is. Without it these are false, "" and empty lists and objects.
  absl::string_view neutral;
};

inline constexpr unsigned kBoth = kCompletions | kChat;

inline constexpr RequestMember kRequestMembers[] = {
    // ---- served
    {"prompt", kCompletions, Handling::kServed, "", ""},
    {"echo", kCompletions, Handling::kServed, "The prompt's text comes first.", ""},
    {"messages", kChat, Handling::kServed, "Text parts only.", ""},
    {"tools", kChat, Handling::kServed, "Functions.", ""},
    {"tool_choice", kChat, Handling::kServed, "", ""},
    {"parallel_tool_calls", kChat, Handling::kServed, "", ""},
    {"logprobs", kChat, Handling::kServed, "", ""},
    {"add_generation_prompt", kChat, Handling::kServed, "", ""},
    {"continue_final_message", kChat, Handling::kServed, "", ""},
    {"add_special_tokens", kChat, Handling::kServed, "", ""},
    {"documents", kChat, Handling::kServed, "For the model's template.", ""},
    {"chat_template_kwargs", kChat, Handling::kServed, "For the model's template.", ""},
    {"model", kBoth, Handling::kServed, "", ""},
    {"n", kBoth, Handling::kServed, "", ""},
    {"best_of", kBoth, Handling::kServed, "", ""},
    {"use_beam_search", kBoth, Handling::kServed, "", ""},
    {"length_penalty", kBoth, Handling::kServed, "Of a beam search.", ""},
    {"early_stopping", kBoth, Handling::kServed, "Of a beam search.", ""},
    {"stream", kBoth, Handling::kServed, "", ""},
    {"stream_options", kBoth, Handling::kServed, "", ""},
    {"response_format", kBoth, Handling::kServed, "", ""},
    {"structured_outputs", kBoth, Handling::kServed, "", ""},
    {"guided_json", kBoth, Handling::kServed, "", ""},
    {"guided_regex", kBoth, Handling::kServed, "", ""},
    {"guided_choice", kBoth, Handling::kServed, "", ""},
    {"guided_grammar", kBoth, Handling::kServed, "", ""},
    {"guided_json_object", kBoth, Handling::kServed, "true: any JSON object.", ""},
    {"grammar", kBoth, Handling::kServed, "As guided_grammar.", ""},
    {"json_schema", kBoth, Handling::kServed, "As guided_json.", ""},
    {"skip_special_tokens", kBoth, Handling::kServed, "", ""},
    {"prompt_logprobs", kBoth, Handling::kServed, "", ""},
    {"truncate_prompt_tokens", kBoth, Handling::kServed, "", ""},
    {"return_token_ids", kBoth, Handling::kServed, "", ""},
    {"return_tokens_as_token_ids", kBoth, Handling::kServed, "", ""},
    {"request_id", kBoth, Handling::kServed, "", ""},
    {"priority", kBoth, Handling::kServed, "A lower one is served earlier.", ""},
    {"service_tier", kBoth, Handling::kServed, "Of the router's; decides who waits.", ""},
    {"cache_salt", kBoth, Handling::kServed, "", ""},
    {"deadline_s", kBoth, Handling::kServed, "", ""},
    {"timing", kBoth, Handling::kServed, "Times, nodes and sources of the KV come back.", ""},
    {"strict", kBoth, Handling::kServed, "Refuses unknown members.", ""},

    // ---- what changes an answer and is not here
    {"suffix", kCompletions, Handling::kRefused, "", ""},
    {"prompt_embeds", kCompletions, Handling::kRefused, "", ""},
    {"documents", kCompletions, Handling::kRefused, "", ""},
    {"add_special_tokens", kCompletions, Handling::kRefused,
     "a prompt of token ids has no tokens added", "[true]"},
    {"echo", kChat, Handling::kRefused, "", ""},
    {"chat_template", kChat, Handling::kRefused, "the model's own is used", ""},
    {"functions", kChat, Handling::kRefused, "use tools", ""},
    {"audio", kChat, Handling::kRefused, "", ""},
    {"modalities", kChat, Handling::kRefused, "", R"([["text"]])"},
    {"moderation", kChat, Handling::kRefused, "", ""},
    {"web_search_options", kChat, Handling::kRefused, "{} asks for a search, too", "[null]"},
    {"media_io_kwargs", kChat, Handling::kRefused, "", ""},
    {"mm_processor_kwargs", kBoth, Handling::kRefused, "", ""},
    {"logits_processors", kBoth, Handling::kRefused, "", ""},
    {"structural_tag", kBoth, Handling::kRefused, "a constraint is on the whole answer", ""},
    {"lora_request", kBoth, Handling::kRefused, "", ""},
    {"lora", kBoth, Handling::kRefused, "", ""},
    {"watermarking", kBoth, Handling::kRefused, "", ""},
    {"thinking_token_budget", kBoth, Handling::kRefused, "", "[-1]"},
    {"repetition_detection", kBoth, Handling::kRefused, "", ""},
    {"truncation_side", kBoth, Handling::kRefused, "the last tokens are kept", R"(["left"])"},
    {"vllm_xargs", kBoth, Handling::kRefused, "", ""},
    {"kv_transfer_params", kBoth, Handling::kRefused, "nodes move KV by themselves", ""},
    {"ec_transfer_params", kBoth, Handling::kRefused, "", ""},
    {"n_cmpl", kBoth, Handling::kRefused, "use n", "[1]"},
    {"n_indent", kBoth, Handling::kRefused, "", "[0]"},
    {"t_max_predict_ms", kBoth, Handling::kRefused, "use deadline_s", "[0, -1]"},
    {"samplers", kBoth, Handling::kRefused, "their order is fixed", ""},
    {"min_keep", kBoth, Handling::kRefused, "", "[0, 1]"},
    {"repeat_last_n", kBoth, Handling::kRefused,
     "penalties look at all tokens; without a penalty any value is accepted", "[-1]"},
    {"typical_p", kBoth, Handling::kRefused, "", "[1]"},
    {"mirostat", kBoth, Handling::kRefused, "", "[0]"},
    {"dry_multiplier", kBoth, Handling::kRefused, "", "[0]"},
    {"xtc_probability", kBoth, Handling::kRefused, "", "[0]"},
    {"dynatemp_range", kBoth, Handling::kRefused, "", "[0]"},
    {"top_n_sigma", kBoth, Handling::kRefused, "", "[-1, 0]"},
    {"grammar_lazy", kBoth, Handling::kRefused, "", ""},
    {"grammar_triggers", kBoth, Handling::kRefused, "", ""},
    {"preserved_tokens", kBoth, Handling::kRefused, "use skip_special_tokens", ""},
    {"thinking_forced_open", kChat, Handling::kRefused, "", ""},

    // ---- what would have to come back and does not
    {"logprob_token_ids", kBoth, Handling::kRefused, "use logprobs", ""},
    {"n_probs", kBoth, Handling::kRefused, "use logprobs", "[0]"},
    {"post_sampling_probs", kBoth, Handling::kRefused, "use logprobs", ""},
    {"return_tokens", kBoth, Handling::kRefused, "use return_token_ids", ""},
    {"return_token_offsets", kBoth, Handling::kRefused, "", ""},
    {"return_prompt_text", kChat, Handling::kRefused, "", ""},
    {"response_fields", kBoth, Handling::kRefused, "", ""},
    {"timings_per_token", kBoth, Handling::kRefused, "use timing", ""},
    {"return_progress", kBoth, Handling::kRefused, "", ""},

    // ---- no answer depends on them
    {"user", kBoth, Handling::kHarmless, "Names the client; keys do that here.", ""},
    {"safety_identifier", kBoth, Handling::kHarmless, "Names the client.", ""},
    {"session_id", kBoth, Handling::kHarmless, "Routers find cached prompts by themselves.", ""},
    {"metadata", kBoth, Handling::kHarmless, "Answers are not stored.", ""},
    {"store", kBoth, Handling::kHarmless, "Answers are not stored.", ""},
    {"prompt_cache_key", kBoth, Handling::kHarmless, "cache_salt separates caches.", ""},
    {"prompt_cache_options", kBoth, Handling::kHarmless, "Cached KV changes no answer.", ""},
    {"prompt_cache_retention", kBoth, Handling::kHarmless, "Cached KV changes no answer.", ""},
    {"cache_prompt", kBoth, Handling::kHarmless, "Cached KV changes no answer.", ""},
    {"n_cache_reuse", kBoth, Handling::kHarmless, "Cached KV changes no answer.", ""},
    {"id_slot", kBoth, Handling::kHarmless, "Routers choose the place.", ""},
    {"n_keep", kBoth, Handling::kHarmless, "An answer ends where its context does.", ""},
    {"n_discard", kBoth, Handling::kHarmless, "An answer ends where its context does.", ""},
    {"stream_interval", kBoth, Handling::kHarmless, "Only the parts' sizes.", ""},
    {"sse_ping_interval", kBoth, Handling::kHarmless, "Only the stream's comments.", ""},
    {"spaces_between_special_tokens", kBoth, Handling::kHarmless, "", ""},
    {"detokenize", kBoth, Handling::kHarmless, "Text always comes.", ""},
    {"guided_decoding_backend", kBoth, Handling::kHarmless, "There is one.", ""},
    {"guided_whitespace_pattern", kBoth, Handling::kHarmless, "", ""},
    {"prediction", kBoth, Handling::kHarmless, "A draft: drafts change no answer.", ""},
    {"speculative.n_max", kBoth, Handling::kHarmless, "Drafts change no answer.", ""},
    {"speculative.n_min", kBoth, Handling::kHarmless, "Drafts change no answer.", ""},
    {"speculative.p_min", kBoth, Handling::kHarmless, "Drafts change no answer.", ""},
    {"dynatemp_exponent", kBoth, Handling::kHarmless, "Only with dynatemp_range.", ""},
    {"dry_base", kBoth, Handling::kHarmless, "Only with dry_multiplier.", ""},
    {"dry_allowed_length", kBoth, Handling::kHarmless, "Only with dry_multiplier.", ""},
    {"dry_penalty_last_n", kBoth, Handling::kHarmless, "Only with dry_multiplier.", ""},
    {"dry_sequence_breakers", kBoth, Handling::kHarmless, "Only with dry_multiplier.", ""},
    {"xtc_threshold", kBoth, Handling::kHarmless, "Only with xtc_probability.", ""},
    {"mirostat_tau", kBoth, Handling::kHarmless, "Only with mirostat.", ""},
    {"mirostat_eta", kBoth, Handling::kHarmless, "Only with mirostat.", ""},
    {"routed_experts_prompt_start", kBoth, Handling::kHarmless, "Experts are not listed.", ""},
    {"mm_payload", kBoth, Handling::kHarmless, "There are texts only.", ""},
    {"return_mm_kwargs", kBoth, Handling::kHarmless, "There are texts only.", ""},
    {"function_call", kChat, Handling::kHarmless, "Only with functions.", ""},
    {"reasoning_effort", kChat, Handling::kHarmless, "No template reads it.", ""},
    {"include_reasoning", kChat, Handling::kHarmless, "Reasoning is part of the text.", ""},
    {"reasoning_format", kChat, Handling::kHarmless, "Reasoning is part of the text.", ""},
    {"reasoning_control", kChat, Handling::kHarmless, "Reasoning is part of the text.", ""},
    {"chat_format", kChat, Handling::kHarmless, "The model's own is used.", ""},
    {"parse_tool_calls", kChat, Handling::kHarmless, "Calls are always read.", ""},
    {"verbosity", kChat, Handling::kHarmless, "No template reads it.", ""},
};

}  // namespace tandem::request
