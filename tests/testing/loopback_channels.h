// PairChannels within one process for tests: payloads take some steps (calls of Progress), and
// channels do not open, fail or stand still as chance has it. Thread safety: none.
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/runtime/random.h"
#include "kernels/api/pair_channel.h"

namespace tandem::testing {

struct ChannelFaults {
  double refuse = 0;           // of channels: NewId or Open errs
  double never = 0;            // of channels: never open
  double fail = 0, stall = 0;  // of steps
  int delay_steps_max = 0;
};

class LoopbackChannels {
 public:
  LoopbackChannels(uint64_t seed, const ChannelFaults& faults)
      : faults_(faults), random_(NewSeededRandom(seed)) {}

  std::unique_ptr<kernels::PairChannels> NewEnd(
      int slots, size_t slot_bytes, kernels::SlotMemory memory = kernels::SlotMemory::kHost);
  void set_faults(const ChannelFaults& faults) { faults_ = faults; }
  // Payloads that came out of channels.
  int64_t delivered() const { return delivered_; }
  int64_t channels() const { return static_cast<int64_t>(channels_.size()); }

 private:
  class Endpoint;
  class End;
  struct Channel {
    bool ends[2] = {false, false};
    bool never = false, failed = false, stalled = false;
    std::deque<std::vector<std::byte>> pipe;
  };
  bool Chance(double probability) {
    return static_cast<double>(random_->Below(1'000'000)) < probability * 1e6;
  }

  ChannelFaults faults_;
  std::unique_ptr<Random> random_;
  int64_t delivered_ = 0;
  std::map<std::string, std::shared_ptr<Channel>> channels_;
};

class LoopbackChannels::Endpoint final : public kernels::PairChannel {
 public:
  Endpoint(LoopbackChannels& network, std::shared_ptr<Channel> channel, bool sender, int slots,
           size_t slot_bytes)
      : network_(network), channel_(std::move(channel)), sender_(sender) {
    slots_.resize(static_cast<size_t>(slots));
    for (Slot& slot : slots_) slot.memory.resize(slot_bytes);
    channel_->ends[sender_ ? 0 : 1] = true;
  }
  // The other end hears of it, or just gets nothing any more.
  ~Endpoint() override { (network_.Chance(0.5) ? channel_->failed : channel_->stalled) = true; }

  State Progress() override {
    if (network_.Chance(network_.faults_.fail)) channel_->failed = true;
    if (network_.Chance(network_.faults_.stall)) channel_->stalled = true;
    if (channel_->failed) {
      status_ = absl::UnavailableError("the loopback channel failed");
      return State::kFailed;
    }
    if (!channel_->ends[0] || !channel_->ends[1] || channel_->never) return State::kOpening;
    if (!channel_->stalled) Move();
    return State::kOpen;
  }
  const absl::Status& status() const override { return status_; }
  absl::Span<std::byte> slot(int index) override { return absl::MakeSpan(At(index).memory); }
  void Start(int slot, size_t bytes) override {
    TANDEM_CHECK(idle(slot) && bytes > 0 && bytes <= At(slot).memory.size(), "slot ", slot);
    At(slot).bytes = bytes;
    At(slot).steps = network_.faults_.delay_steps_max > 0
                         ? static_cast<int>(network_.random_->Below(
                               static_cast<uint64_t>(network_.faults_.delay_steps_max)))
                         : 0;
    started_.push_back(slot);
  }
  bool idle(int slot) const override { return slots_[static_cast<size_t>(slot)].bytes == 0; }

 private:
  struct Slot {
    std::vector<std::byte> memory;
    size_t bytes = 0;
    int steps = 0;
  };
  Slot& At(int slot) { return slots_[static_cast<size_t>(slot)]; }

  // The oldest operation goes on.
  void Move() {
    if (started_.empty()) return;
    Slot& slot = At(started_.front());
    if (slot.steps-- > 0) return;
    if (sender_) {
      channel_->pipe.emplace_back(slot.memory.begin(),
                                  slot.memory.begin() + static_cast<ptrdiff_t>(slot.bytes));
    } else {
      if (channel_->pipe.empty()) return;
      const std::vector<std::byte> sent = std::move(channel_->pipe.front());
      channel_->pipe.pop_front();
      TANDEM_CHECK(sent.size() == slot.bytes, sent.size(), " bytes sent, ", slot.bytes,
                   " expected");
      std::memcpy(slot.memory.data(), sent.data(), sent.size());
      ++network_.delivered_;
    }
    slot.bytes = 0;
    started_.pop_front();
  }

  LoopbackChannels& network_;
  const std::shared_ptr<Channel> channel_;
  const bool sender_;
  std::vector<Slot> slots_;
  std::deque<int> started_;
  absl::Status status_;
};

class LoopbackChannels::End final : public kernels::PairChannels {
 public:
  End(LoopbackChannels& network, int slots, size_t slot_bytes, kernels::SlotMemory memory)
      : network_(network), slots_(slots), slot_bytes_(slot_bytes), memory_(memory) {}
  const std::string& name() const override { return name_; }
  int slots() const override { return slots_; }
  size_t slot_bytes() const override { return slot_bytes_; }
  kernels::SlotMemory slot_memory() const override { return memory_; }
  absl::StatusOr<std::string> NewId() override {
    if (network_.Chance(network_.faults_.refuse)) return absl::UnavailableError("no id today");
    const std::string id = absl::StrCat("channel ", network_.channels_.size());
    network_.channels_[id] = std::make_shared<Channel>();
    network_.channels_[id]->never = network_.Chance(network_.faults_.never);
    return id;
  }
  absl::StatusOr<std::unique_ptr<kernels::PairChannel>> Open(const std::string& id,
                                                             Side side) override {
    const auto found = network_.channels_.find(id);
    if (found == network_.channels_.end()) return absl::InvalidArgumentError("no such channel");
    if (network_.Chance(network_.faults_.refuse))
      return absl::UnavailableError("no channel this time");
    return std::make_unique<Endpoint>(network_, found->second, side == Side::kSender, slots_,
                                      slot_bytes_);
  }

 private:
  LoopbackChannels& network_;
  const std::string name_ = "loopback";
  const int slots_;
  const size_t slot_bytes_;
  const kernels::SlotMemory memory_;
};

inline std::unique_ptr<kernels::PairChannels> LoopbackChannels::NewEnd(int slots, size_t slot_bytes,
                                                                       kernels::SlotMemory memory) {
  return std::make_unique<End>(*this, slots, slot_bytes, memory);
}

}  // namespace tandem::testing
