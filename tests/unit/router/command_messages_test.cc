// Goal: a message to a node stays small however many large commands one batch of the core has for
// it, and each node gets its commands in their order.
#include "router/process/command_messages.h"

#include <gmock/gmock.h>

#include <map>
#include <string>

namespace tandem::router {
namespace {

using ::testing::Each;
using ::testing::Le;
using ::testing::SizeIs;

using Commands = std::vector<std::pair<NodeKey, v1::NodeCommand>>;

v1::NodeCommand CommandOf(uint64_t lease, size_t bytes) {
  v1::NodeCommand command;
  command.mutable_prefill()->set_lease_id(lease);
  command.mutable_prefill()->set_receiver_address(std::string(bytes, 'x'));
  return command;
}

TEST(CommandMessages, ManyLargeCommandsBecomeSeveralMessages) {
  const NodeKey busy(1), idle(2);
  Commands commands;
  for (uint64_t i = 0; i < 127; ++i) {
    commands.emplace_back(busy, CommandOf(i, 600'000));
    commands.emplace_back(idle, CommandOf(i, 10));
  }
  std::map<NodeKey, std::vector<uint64_t>> leases;
  std::map<NodeKey, std::vector<size_t>> sizes;
  for (const auto& [node, message] : CommandMessages(commands)) {
    sizes[node].push_back(message.ByteSizeLong());
    for (const v1::NodeCommand& command : message.commands())
      leases[node].push_back(command.prefill().lease_id());
  }
  EXPECT_THAT(sizes[busy], Each(Le(size_t{2} << 20)));
  EXPECT_THAT(sizes[busy], SizeIs(64));
  EXPECT_THAT(sizes[idle], SizeIs(1));
  std::vector<uint64_t> expected(127);
  for (uint64_t i = 0; i < 127; ++i) expected[i] = i;
  EXPECT_EQ(leases[busy], expected);
  EXPECT_EQ(leases[idle], expected);
}

TEST(CommandMessages, NoneBecomeNone) {
  Commands commands;
  EXPECT_THAT(CommandMessages(commands), SizeIs(0));
}

}  // namespace
}  // namespace tandem::router
