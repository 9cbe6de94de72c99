// Goal: no bytes taken as a chat template make parsing or rendering crash or run without end.
#include <cstddef>
#include <cstdint>

#include "common/model/chat_template/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view source(reinterpret_cast<const char*>(data), size);
  tandem::model::TemplateLimits limits;
  limits.steps_max = 20'000;
  limits.output_bytes_max = 1 << 20;
  const auto parsed = tandem::model::ChatTemplate::Parse(source, limits);
  if (!parsed.ok()) return 0;
  tandem::model::ChatTemplate::RenderInput input;
  input.messages = nlohmann::ordered_json::array(
      {{{"role", "system"}, {"content", " Be brief. "}},
       {{"role", "user"}, {"content", "Grüße <&> 👍"}},
       {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {{{"id", "abcdef012"}}}}}});
  input.tools =
      nlohmann::ordered_json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  input.bos_token = "<s>";
  input.eos_token = "</s>";
  // Errors are fine; only crashes, leaks and hangs are findings.
  [[maybe_unused]] const bool rendered = (*parsed)->Render(input).ok();
  return 0;
}
