// Goal: whatever a node has to say reaches a router whole, in order, and in messages of the size
// that one reads.
#include "common/node/node_message.h"

#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <vector>

#include "common/kv/block_hash.h"
#include "common/rpc/server.h"
#include "common/runtime/random.h"

namespace tandem::node {
namespace {

std::string Hashes(Random& random, uint64_t count_max) {
  std::string hashes(kv::kBlockHashBytes * random.Below(count_max + 1), '\0');
  for (char& byte : hashes) byte = static_cast<char>(random.Below(256));
  return hashes;
}

v1::NodeEvent RandomEvent(Random& random, uint64_t size_max) {
  v1::NodeEvent event;
  switch (random.Below(4)) {
    case 0: {
      v1::BlocksStored& stored = *event.mutable_blocks_stored();
      stored.set_hashes(Hashes(random, size_max));
      stored.set_on_disk(random.Below(3) > 0);
      stored.set_in_host_memory(stored.on_disk() && random.Below(2) == 0);
      break;
    }
    case 1:
      event.mutable_blocks_removed()->set_hashes(Hashes(random, size_max));
      break;
    case 2: {
      v1::PromptScored& scored = *event.mutable_prompt_scored();
      scored.mutable_leg()->set_request_id("request");
      scored.set_first_index(static_cast<int32_t>(random.Below(1000)));
      for (uint64_t i = random.Below(size_max + 1); i > 0; --i)
        scored.add_tokens()->set_token_id(static_cast<int32_t>(random.Below(100000)));
      break;
    }
    default:
      event.mutable_draining();
  }
  return event;
}

// What a router learns of messages: a line for each hash, token and other event.
std::vector<std::string> Told(const std::vector<v1::NodeMessage>& messages) {
  std::vector<std::string> told;
  const auto tell = [&told](const std::string& what, const std::string& hashes) {
    for (size_t i = 0; i < hashes.size(); i += kv::kBlockHashBytes)
      told.push_back(what + hashes.substr(i, kv::kBlockHashBytes));
  };
  for (const v1::NodeMessage& message : messages) {
    tell("stored ", message.registration().cached_blocks());
    for (const v1::NodeEvent& event : message.events()) {
      const v1::BlocksStored& stored = event.blocks_stored();
      tell(stored.in_host_memory() ? "in host memory "
           : stored.on_disk()      ? "on disk "
                                   : "stored ",
           stored.hashes());
      tell("removed ", event.blocks_removed().hashes());
      if (event.has_draining()) told.push_back("draining");
      int32_t index = event.prompt_scored().first_index();
      for (const v1::GeneratedToken& token : event.prompt_scored().tokens())
        told.push_back(event.prompt_scored().leg().request_id() + " " + std::to_string(index++) +
                       " " + std::to_string(token.token_id()));
    }
  }
  return told;
}

TEST(NodeMessage, IsCutToWhatRoutersRead) {
  const uint64_t seed = NewSystemRandom()->Next();
  std::cout << "seed " << seed << std::endl;
  const auto random = NewSeededRandom(seed);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    v1::NodeMessage message;
    message.mutable_load()->set_blocks_total(7);
    if (random->Below(2) == 0) {
      message.mutable_registration()->set_node_id("node");
      message.mutable_registration()->set_cached_blocks(Hashes(*random, 200));
    }
    for (uint64_t i = random->Below(20); i > 0; --i)
      *message.add_events() = RandomEvent(*random, 100);
    const size_t bytes_max = 200 + random->Below(4000);
    const std::vector<v1::NodeMessage> parts = CutNodeMessage(message, bytes_max);
    EXPECT_EQ(Told(parts), Told({message}));
    for (const v1::NodeMessage& part : parts) EXPECT_LE(part.ByteSizeLong(), bytes_max);
    EXPECT_EQ(parts[0].load().blocks_total(), 7);
    EXPECT_FALSE(parts[0].has_registration() && parts[0].events_size() > 0);
    for (size_t i = 1; i < parts.size(); ++i) {
      EXPECT_FALSE(parts[i].has_registration() || parts[i].has_load());
      EXPECT_GT(parts[i].events_size(), 0) << "an empty message";
    }
  }
}

TEST(NodeMessage, OfAMillionCachedBlocksIsRead) {
  v1::NodeMessage message;
  message.mutable_registration()->set_cached_blocks(std::string(16 << 20, 'h'));
  const std::vector<v1::NodeMessage> parts = CutNodeMessage(message);
  EXPECT_EQ(Told(parts).size(), 1u << 20);
  for (const v1::NodeMessage& part : parts)
    EXPECT_LT(part.ByteSizeLong(), static_cast<size_t>(rpc::kNodeMessageBytesMax));
}

}  // namespace
}  // namespace tandem::node
