#include "common/node/node_message.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/kv/block_hash.h"

namespace tandem::node {
namespace {

// An upper bound for the bytes of a field's tag and length.
constexpr size_t kFieldBytes = 8;

// Cuts `hashes` to the whole hashes in its first `bytes_max` bytes, and returns the rest.
std::string TakeRest(std::string& hashes, size_t bytes_max) {
  const size_t kept = std::max<size_t>(bytes_max / kv::kBlockHashBytes, 1) * kv::kBlockHashBytes;
  if (hashes.size() <= kept) return "";
  std::string rest = hashes.substr(kept);
  hashes.resize(kept);
  return rest;
}

// Cuts `scored` to the tokens in its first `bytes_max` bytes, at least one, and returns the rest.
v1::PromptScored TakeRest(v1::PromptScored& scored, size_t bytes_max) {
  size_t bytes = 0;
  int kept = 0;
  for (; kept < scored.tokens_size(); ++kept) {
    bytes += scored.tokens(kept).ByteSizeLong() + kFieldBytes;
    if (kept > 0 && bytes > bytes_max) break;
  }
  v1::PromptScored rest;
  if (kept == scored.tokens_size()) return rest;
  *rest.mutable_leg() = scored.leg();
  rest.set_first_index(scored.first_index() + kept);
  for (int i = kept; i < scored.tokens_size(); ++i)
    rest.mutable_tokens()->Add(std::move(*scored.mutable_tokens(i)));
  scored.mutable_tokens()->DeleteSubrange(kept, scored.tokens_size() - kept);
  return rest;
}

class Cutter {
 public:
  explicit Cutter(size_t bytes_max) : bytes_max_(bytes_max), payload_max_(bytes_max / 2) {}

  std::vector<v1::NodeMessage> Cut(v1::NodeMessage message) {
    google::protobuf::RepeatedPtrField<v1::NodeEvent> events;
    events.Swap(message.mutable_events());
    std::string unregistered;
    if (message.has_registration())
      unregistered =
          TakeRest(*message.mutable_registration()->mutable_cached_blocks(), payload_max_);
    // A registration stands alone: routers read no events beside it.
    bytes_ = message.has_registration() ? bytes_max_ : message.ByteSizeLong();
    messages_.push_back(std::move(message));
    if (!unregistered.empty()) {
      v1::NodeEvent stored;
      stored.mutable_blocks_stored()->set_hashes(std::move(unregistered));
      AddInParts(std::move(stored));
    }
    for (v1::NodeEvent& event : events) AddInParts(std::move(event));
    return std::move(messages_);
  }

 private:
  void AddInParts(v1::NodeEvent event) {
    while (true) {
      v1::NodeEvent rest = TakeRestOf(event);
      Add(std::move(event));
      if (rest.event_case() == v1::NodeEvent::EVENT_NOT_SET) return;
      event = std::move(rest);
    }
  }

  v1::NodeEvent TakeRestOf(v1::NodeEvent& event) const {
    v1::NodeEvent rest;
    if (event.has_blocks_stored()) {
      std::string more = TakeRest(*event.mutable_blocks_stored()->mutable_hashes(), payload_max_);
      if (!more.empty()) {
        rest.mutable_blocks_stored()->set_hashes(std::move(more));
        rest.mutable_blocks_stored()->set_on_disk(event.blocks_stored().on_disk());
        rest.mutable_blocks_stored()->set_in_host_memory(event.blocks_stored().in_host_memory());
      }
    } else if (event.has_blocks_removed()) {
      std::string more = TakeRest(*event.mutable_blocks_removed()->mutable_hashes(), payload_max_);
      if (!more.empty()) rest.mutable_blocks_removed()->set_hashes(std::move(more));
    } else if (event.has_prompt_scored()) {
      v1::PromptScored more = TakeRest(*event.mutable_prompt_scored(), payload_max_);
      if (more.tokens_size() > 0) *rest.mutable_prompt_scored() = std::move(more);
    }
    return rest;
  }

  void Add(v1::NodeEvent event) {
    const size_t bytes = event.ByteSizeLong() + kFieldBytes;
    if (bytes_ + bytes > bytes_max_ && bytes_ > 0) {
      messages_.emplace_back();
      bytes_ = 0;
    }
    bytes_ += bytes;
    *messages_.back().add_events() = std::move(event);
  }

  const size_t bytes_max_, payload_max_;
  std::vector<v1::NodeMessage> messages_;  // Bound: the message's bytes over half of bytes_max.
  size_t bytes_ = 0;                       // of the last one
};

}  // namespace

std::vector<v1::NodeMessage> CutNodeMessage(v1::NodeMessage message, size_t bytes_max) {
  const bool beside = message.has_registration() && message.events_size() > 0;
  if (beside || message.ByteSizeLong() > bytes_max)
    return Cutter(bytes_max).Cut(std::move(message));
  std::vector<v1::NodeMessage> whole;
  whole.push_back(std::move(message));
  return whole;
}

}  // namespace tandem::node
