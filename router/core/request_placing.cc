// The part of RequestTable (router/core/request_table.h) that places what waits in the admission
// queue, and predicts when it will have drained.
#include <algorithm>
#include <numeric>
#include <utility>

#include "common/rpc/retry_after.h"
#include "router/core/request_table.h"

namespace tandem::router {

class RequestTable::Placing final : public AdmissionQueue::Owner {
 public:
  Placing(RequestTable& table, absl::Time now) : table_(table), now_(now) {}

  int64_t TokensNeeded(Serial serial) override {
    const Sequence& sequence = *table_.sequences_.at(serial);
    const bool apart =
        table_.BesideOf(*sequence.group).has_value() || sequence.machine->AvoidsNodes(now_);
    return apart ? 0 : sequence.machine->tokens_without_prefix();
  }
  int64_t TokensToKeep(Serial serial) override {
    SequenceMachine& machine = *table_.sequences_.at(serial)->machine;
    return machine.AvoidsNodes(now_) ? 0 : machine.tokens_without_prefix();
  }
  int64_t PromptTokens(Serial serial) override {
    return table_.sequences_.at(serial)->machine->tokens_to_place();
  }
  AdmissionQueue::Attempt TryToPlace(Serial serial) override {
    const Sequence& sequence = *table_.sequences_.at(serial);
    if (table_.ExceedsShare(serial, sequence)) {
      sequence.machine->StayQueued(PlacementFailure::kTenantShare);
      return {PlacementFailure::kTenantShare};
    }
    const auto failure = sequence.machine->Place(table_.BesideOf(*sequence.group), kept_, now_);
    if (failure.has_value() && sequence.machine->late() && !sequence.group->late())
      late_.push_back(serial);
    return {failure, failure == PlacementFailure::kNoRoom ? Room() : AdmissionQueue::kAnyRoom};
  }
  absl::Duration Waited(Serial serial) override {
    return table_.sequences_.at(serial)->machine->waited(now_);
  }
  void OnPlaced(Serial serial) override {
    table_.sequences_.at(serial)->kept.reset();
    table_.Settle(serial, now_);
  }
  void KeepRoomFor(Serial serial) override {
    Sequence& sequence = *table_.sequences_.at(serial);
    // The same node as in the last walk: its room grows, because nothing younger comes there.
    const Node* node =
        sequence.kept.has_value() ? table_.context_.fleet.Find(*sequence.kept) : nullptr;
    const bool stays = node != nullptr && !node->draining &&
                       std::find(kept_.begin(), kept_.end(), node->key) == kept_.end();
    if (!stays) sequence.kept = sequence.machine->NodeToKeep(kept_, now_);
    if (sequence.kept.has_value()) kept_.push_back(*sequence.kept);
  }

  const std::vector<Serial>& late() const { return late_; }

 private:
  // The most tokens that a node has room for, apart from those that are kept.
  int64_t Room() const {
    const Fleet& fleet = table_.context_.fleet;
    // With what others lend, a long prompt may begin in less room than a short one.
    if (fleet.lends()) return AdmissionQueue::kAnyRoom;
    int64_t room = 0;
    fleet.order().VisitByRoom([&](const Node& node) {
      if (std::find(kept_.begin(), kept_.end(), node.key) != kept_.end()) return true;
      room = std::max<int64_t>(0, node.blocks_available() * node.block_tokens);
      return false;
    });
    return room;
  }

  RequestTable& table_;
  const absl::Time now_;
  // Found late in this walk. Bound: AdmissionQueue::kTriedMax (256).
  std::vector<Serial> late_;
  // Bound: AdmissionQueue::kKeptMax (16).
  std::vector<NodeKey> kept_;
};

void RequestTable::PlaceQueued(absl::Time now) {
  Placing placing(*this, now);
  queue_.PlaceAll(placing);
  for (const Serial serial : placing.late()) SetLate(serial);
  walked_at_ = ChangesSoFar();
}

void RequestTable::PlaceIfRoomGrew(absl::Time now) {
  if (queued() > 0 && walked_at_ != ChangesSoFar()) PlaceQueued(now);
}

bool RequestTable::FitQueue(const std::string& tenant, absl::Time now) {
  if (queued() <= context_.options.queue_max) return true;
  const std::string* const largest = queue_.LargestTenant();
  if (!queue_.HasMore(*largest, tenant)) return false;
  SequenceGroup* const last = LastWaiting(*largest);
  if (last == nullptr) return false;
  FailGroup(*last, QueueIsFull(now));
  return true;
}

SequenceGroup* RequestTable::LastWaiting(const std::string& tenant) const {
  // Enough to pass the sequences of one request, and those that lost their nodes.
  constexpr int kLastOnes = 256;
  SequenceGroup* last = nullptr;
  int seen = 0;
  queue_.VisitBackwards(tenant, [&](Serial serial) {
    SequenceGroup& group = *sequences_.at(serial)->group;
    if (!group.runs() && group.computed_tokens() == 0) last = &group;
    return last == nullptr && ++seen < kLastOnes;
  });
  return last;
}

absl::Status RequestTable::QueueIsFull(absl::Time now) {
  return rpc::WithRetryAfter(
      absl::ResourceExhaustedError(absl::StrCat(
          context_.options.queue_max, " sequences wait for placement, the queue's bound")),
      RetrySeconds(queued(), now));
}

RequestTable::Wait RequestTable::WaitBefore(Serial serial, absl::Time now) const {
  // Those whose times are looked at, and those that are counted at all.
  constexpr size_t kSample = 64;
  constexpr int64_t kCounted = 1024;
  // Bound: kSample.
  std::vector<const SequenceMachine*> known;
  absl::Duration begins = absl::InfiniteDuration();
  // False: no placement has predicted its time yet.
  const auto look = [&](const SequenceMachine& machine) {
    const absl::Duration fastest = machine.first_token_fastest();
    if (fastest <= absl::ZeroDuration()) return false;
    begins = std::min(begins, machine.first_token_predicted() - fastest);
    return true;
  };
  look(*sequences_.at(serial)->machine);
  int64_t before = 0;
  queue_.VisitBefore(sequences_.at(serial)->group->share().tenant, PositionOf(serial),
                     [&](Serial other) {
                       const SequenceMachine* machine = sequences_.at(other)->machine.get();
                       if (known.size() < kSample && look(*machine)) known.push_back(machine);
                       return ++before < kCounted;
                     });
  if (begins == absl::InfiniteDuration()) return {};
  const LoadOrder& order = context_.fleet.order();
  const size_t prefill = order.size(kPrefillNodes);
  const size_t nodes = std::max<size_t>(1, prefill > 0 ? prefill : order.size(kDecodeNodes));
  // Each one that is known stands for as many of those before.
  const double stands_for =
      static_cast<double>(before) / static_cast<double>(std::max<size_t>(1, known.size()));
  absl::Duration all;
  for (const SequenceMachine* machine : known) {
    all += machine->first_token_fastest();
    if (!machine->WouldBeLate(begins, machine->first_token_fastest(), now))
      begins += machine->first_token_fastest() * stands_for / static_cast<double>(nodes);
  }
  return {begins, all / std::max<int64_t>(1, static_cast<int64_t>(known.size()))};
}

int64_t RequestTable::RetrySeconds(int64_t sequences, absl::Time now) {
  // Enough to tell long prompts from short ones.
  constexpr size_t kSample = 64;
  const auto mean_tokens = [&] {
    const std::vector<int64_t> tokens = WaitingTokens(kSample);
    const double sum = std::accumulate(tokens.begin(), tokens.end(), 0.0);
    return sum / static_cast<double>(std::max<size_t>(1, tokens.size()));
  };
  return drain_.RetrySeconds(context_.fleet, sequences, mean_tokens,
                             context_.options.queue_deadline, now);
}

absl::Status RequestTable::WithHint(const absl::Status& why, absl::Time now) {
  if (!absl::IsResourceExhausted(why) || why.GetPayload(rpc::kRetryAfterPayload).has_value())
    return why;
  return rpc::WithRetryAfter(why, RetrySeconds(queued(), now));
}

std::vector<int64_t> RequestTable::WaitingTokens(size_t most) const {
  std::vector<int64_t> tokens;
  for (const auto& [serial, sequence] : sequences_) {
    if (tokens.size() >= most) break;
    const bool waits = sequence->machine->state() == SequenceMachine::State::kQueued;
    if (waits && IsQueued(serial)) tokens.push_back(sequence->machine->tokens_to_place());
  }
  return tokens;
}

}  // namespace tandem::router
