#include "router/process/command_messages.h"

#include "absl/container/flat_hash_map.h"

namespace tandem::router {

std::vector<std::pair<NodeKey, v1::RouterMessage>> CommandMessages(
    std::vector<std::pair<NodeKey, v1::NodeCommand>>& commands) {
  struct Last {
    size_t at = 0;  // in `messages`
    size_t bytes = kCommandMessageBytes;
  };
  std::vector<std::pair<NodeKey, v1::RouterMessage>> messages;
  absl::flat_hash_map<NodeKey, Last> last_of;
  for (auto& [node, command] : commands) {
    Last& last = last_of[node];
    if (last.bytes >= kCommandMessageBytes) {
      last = {messages.size(), 0};
      messages.emplace_back(node, v1::RouterMessage());
    }
    last.bytes += command.ByteSizeLong();
    *messages[last.at].second.add_commands() = std::move(command);
  }
  return messages;
}

}  // namespace tandem::router
