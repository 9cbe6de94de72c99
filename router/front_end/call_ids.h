// Ids of tool calls for templates that take short ones only. Mistral's own templates refuse a
// conversation whose calls have ids of other than 9 characters, while the ids that clients bring
// are longer or, over Ollama's API, missing.
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "common/model/chat_template/chat_template.h"

namespace tandem::router {

// Whether the template refuses a conversation with a call because of the length of its id. Found
// out by rendering one, in `steps_max` steps.
bool NeedsShortCallIds(const model::ChatTemplate& chat_template, int64_t steps_max);

// Gives the calls of `messages`, a chat's, and the results that belong to them ids of 9 letters and
// digits. An id depends on the calls before it alone, so that a longer conversation begins as the
// shorter one. A result without an id belongs to the next call of the message before it. Messages
// that have such ids already stay as they are.
void ShortenCallIds(nlohmann::ordered_json& messages);

}  // namespace tandem::router
