// Turns the conversation of a body of /v1/messages into the messages of a chat. A tool's result
// stands in a user's message there and is a message of its own in a chat. Messages of one role that
// follow each other are one message, as they are at Anthropic's.
// Thread safety: none; one reader uses it. Owner: the reader's stack.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/front_end/json_body.h"

namespace tandem::router {

class AnthropicMessages {
 public:
  // The system prompt: a text, or blocks of text. kInvalidArgument and kUnimplemented, here and
  // below, name the member: "system[0].type: …".
  absl::Status AddSystem(const Json& system);
  // The next message; `path` is "messages[3]".
  absl::Status Add(const Json& message, const std::string& path);
  // Whether the last message is an assistant's, which the answer then continues.
  bool continues() const { return continues_; }
  Json Take() { return std::move(messages_); }

 private:
  // Adds a message whose content is a text, or joins it to the last one if that has its role.
  void Push(Json message);
  absl::Status AddBlock(const Json& block, const std::string& path, const std::string& role,
                        Json& message);
  absl::Status AddCall(const Json& block, const std::string& path, Json& message);
  absl::Status AddResult(const Json& block, const std::string& path);

  // Bound: the values of one body (JsonLimits).
  Json messages_ = Json::array();
  // The tool that each call asked for, by the call's id.
  // Bound: as messages_.
  std::map<std::string, std::string> tools_;
  bool continues_ = false;
};

}  // namespace tandem::router
