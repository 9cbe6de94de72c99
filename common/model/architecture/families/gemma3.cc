// Implements families::Gemma3 (common/model/architecture/registry.h). Gemma 3 (text): norms before
// and after attention and FFN, local layers with a sliding window and RoPE parameters of their own,
// scaled embeddings.
#include "common/model/architecture/architecture.h"

namespace tandem::model::families {
namespace {

// Gemma 3's form of a conversation. Its base models and many GGUF files carry no template. There is
// no system turn: the system message begins the user's first turn.
constexpr absl::string_view kChatTemplate = R"({{ bos_token }}
{%- set ns = namespace(prefix='', expected='user') -%}
{%- for message in messages -%}
  {%- set text = message['content'] if message['content'] is string
                 else message['content'] | map(attribute='text') | join('') -%}
  {%- if message['role'] == 'system' and loop.first -%}
    {%- set ns.prefix = text + '\n\n' -%}
  {%- elif message['role'] != ns.expected -%}
    {{ raise_exception("the messages' roles must alternate: user, assistant, user, ...") }}
  {%- else -%}
    {{ '<start_of_turn>' + ('model' if ns.expected == 'assistant' else 'user') + '\n' }}
    {{- ns.prefix + text | trim + '<end_of_turn>\n' }}
    {%- set ns.prefix = '' -%}
    {%- set ns.expected = 'user' if ns.expected == 'assistant' else 'assistant' -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<start_of_turn>model\n' }}
{%- endif -%})";

}  // namespace

Architecture Gemma3() {
  return {
      .name = "gemma3",
      .spelling = {"Gemma3ForCausalLM", "gemma3"},
      .keys = {.activation = {"hidden_activation", ""},
               .attention_scalar = {"query_pre_attn_scalar", ""}},
      .tensor_names = {{TensorRole::kFfnNorm,
                        {"pre_feedforward_layernorm.weight", "ffn_norm.weight"}}},
      .activation = Activation::kGeluTanhMul,
      .norms = LayerNorms::kSandwich,
      .qk_norm = true,
      .scaled_embeddings = true,
      .windows = {.hugging_face = WindowPattern::kPeriodic,
                  .gguf = WindowPattern::kPeriodic,
                  .tokens = 4096,
                  .period = 6},
      .rope_theta = 1000000.0,
      .windowed_rope_theta = 10000.0,
      .norm_weights_minus_one = true,
      .head_dim = 256,
      .tied_embeddings = true,
      .attention_scalar = 256.0,
      .chat_template = kChatTemplate,
      // Gemma 3 27B, the one size whose scalar is not head_dim.
      .gguf_even_scalar_layers = 62,
  };
}

}  // namespace tandem::model::families
