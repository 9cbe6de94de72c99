// The messages of a chat.
// Thread safety: none; one thread at a time. Owner: the chat command.
#pragma once

#include <string>

#include "tandem/v1/client.pb.h"

namespace tandem::cli {

class Conversation {
 public:
  // Starts over with a system message; empty = none.
  void Start(const std::string& system);
  void Add(const std::string& role, const std::string& content);
  // Removes the user's last message and what follows, and returns it; empty when there is none.
  std::string ForgetLastTurn();
  const v1::ChatMessages& messages() const { return messages_; }

 private:
  v1::ChatMessages messages_;
};

}  // namespace tandem::cli
