#include "router/front_end/call_ids.h"

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace tandem::router {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShortIdCharacters = 9;

// The n-th call's id: its number in base 36.
std::string ShortId(int64_t number) {
  std::string id(kShortIdCharacters, '0');
  for (auto digit = id.rbegin(); digit != id.rend() && number > 0; ++digit, number /= 36) {
    *digit = "0123456789abcdefghijklmnopqrstuvwxyz"[number % 36];
  }
  return id;
}

// The text of a member; empty when it is missing or no text.
absl::string_view TextOf(const Json& object, const char* name) {
  const auto member = object.find(name);
  if (member == object.end() || !member->is_string()) return "";
  return member->get_ref<const std::string&>();
}

bool HasShortId(const Json& object, const char* name) {
  const absl::string_view id = TextOf(object, name);
  return id.size() == kShortIdCharacters &&
         std::all_of(id.begin(), id.end(), [](unsigned char c) { return absl::ascii_isalnum(c); });
}

bool IsResult(const Json& message) { return TextOf(message, "role") == "tool"; }

// Null: the message has no calls.
template <typename J>
J* CallsOf(J& message) {
  const auto calls = message.find("tool_calls");
  return calls == message.end() || !calls->is_array() ? nullptr : &*calls;
}

bool AllAreShort(const Json& messages) {
  return std::all_of(messages.begin(), messages.end(), [](const Json& message) {
    if (IsResult(message) && !HasShortId(message, "tool_call_id")) return false;
    const Json* calls = CallsOf(message);
    return calls == nullptr || std::all_of(calls->begin(), calls->end(),
                                           [](const Json& call) { return HasShortId(call, "id"); });
  });
}

}  // namespace

bool NeedsShortCallIds(const model::ChatTemplate& chat_template, int64_t steps_max) {
  const auto renders = [&](const std::string& id) {
    model::ChatTemplate::RenderInput input;
    const Json call = {{"id", id},
                       {"type", "function"},
                       {"function", {{"name", "f"}, {"arguments", Json::object()}}}};
    input.messages =
        Json::array({{{"role", "user"}, {"content", "u"}},
                     {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}},
                     {{"role", "tool"}, {"tool_call_id", id}, {"name", "f"}, {"content", "r"}}});
    input.steps_max = steps_max;
    return chat_template.Render(input).ok();
  };
  return !renders("call_chatcmpl-0_0_0") && renders(ShortId(0));
}

void ShortenCallIds(Json& messages) {
  if (AllAreShort(messages)) return;
  // Bound: the calls of the conversation. Of calls with the same id the last one.
  absl::flat_hash_map<std::string, int64_t> numbers;
  int64_t calls_so_far = 0;
  int64_t next_result = 0;  // the call of the next result without an id
  for (Json& message : messages) {
    if (Json* calls = CallsOf(message)) {
      next_result = calls_so_far;
      for (Json& call : *calls) {
        if (const absl::string_view id = TextOf(call, "id"); !id.empty()) {
          numbers[id] = calls_so_far;
        }
        call["id"] = ShortId(calls_so_far++);
      }
    }
    if (!IsResult(message)) continue;
    const auto known = numbers.find(TextOf(message, "tool_call_id"));
    const int64_t number = known == numbers.end() ? next_result : known->second;
    message["tool_call_id"] = ShortId(number);
    next_result = number + 1;
  }
}

}  // namespace tandem::router
