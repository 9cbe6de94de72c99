// The items of OpenAI's Responses API as the messages of a chat: messages, function_call and
// function_call_output items. Everything else an item can be is refused by its name. Calls belong
// to the assistant's message before them, as in a chat, so that both APIs give a model the same
// prompt. Thread safety: none; one for each conversation.
#pragma once

#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "router/front_end/http/json_body.h"

namespace tandem::router {

class ItemReader {
 public:
  // The next item of the conversation. `path` names it in faults: "input[2]".
  absl::Status Add(const Json& item, const std::string& path);
  // The last item is an assistant's message that was cut off: the answer goes on with it.
  bool continues() const { return continues_; }
  // The messages of all items, in order.
  Json TakeMessages() { return std::move(messages_); }

 private:
  absl::Status AddMessage(const Json& item, const std::string& path);
  absl::Status AddCall(const Json& item, const std::string& path);
  absl::Status AddOutput(const Json& item, const std::string& path);

  Json messages_ = Json::array();
  // Bound: the items of the conversation.
  absl::flat_hash_set<std::string> call_ids_;
  bool continues_ = false;
};

}  // namespace tandem::router
