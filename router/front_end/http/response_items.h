// Turns the items of OpenAI's Responses API into the messages of a chat: message, function_call and
// function_call_output items. Other kinds of items are refused by name. A call belongs to the
// assistant's message before it, as in a chat, so that both APIs give a model the same prompt.
// Thread safety: none. Owner: the reader of one conversation.
#pragma once

#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "router/front_end/json_body.h"

namespace tandem::router {

class ItemReader {
 public:
  // Reads the next item of the conversation. `path` names it in errors: "input[2]".
  absl::Status Add(const Json& item, const std::string& path);
  // Whether the last item is an unfinished assistant's message, which the answer continues.
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
