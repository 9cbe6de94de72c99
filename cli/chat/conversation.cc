#include "cli/chat/conversation.h"

namespace tandem::cli {

void Conversation::Start(const std::string& system) {
  messages_.Clear();
  if (!system.empty()) Add("system", system);
}

void Conversation::Add(const std::string& role, const std::string& content) {
  v1::ChatMessage& message = *messages_.add_messages();
  message.set_role(role);
  message.set_content(content);
}

std::string Conversation::ForgetLastTurn() {
  std::string asked;
  while (asked.empty() && messages_.messages_size() > 0) {
    const v1::ChatMessage& last = messages_.messages(messages_.messages_size() - 1);
    if (last.role() == "system") break;
    if (last.role() == "user") asked = last.content();
    messages_.mutable_messages()->RemoveLast();
  }
  return asked;
}

}  // namespace tandem::cli
