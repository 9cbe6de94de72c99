#include "sim/sim_router.h"

#include <utility>

#include "common/base/check.h"
#include "sim/checkers/bounds_checker.h"

namespace tandem::sim {

void SimRouter::OnStart() {
  core_ = std::make_unique<router::RouterCore>(options_.core, options_.model, world().random());
  Tick();
}

void SimRouter::OnCrash() {
  for (ControlStream* stream : all_streams_) stream->OnRouterCrash();
  core_.reset();
  keys_.clear();
  streams_.clear();
}

void SimRouter::Tick() {
  core_->OnTick(Now());
  Pump();
  if (options_.checked)
    CheckRouterBounds(name(), *core_, options_.requests_max, options_.sequences_max,
                      options_.core.index_blocks_max, log_);
  Post(options_.tick_interval * slowness(), [this] { Tick(); });
}

absl::Status SimRouter::Submit(router::RequestInput input) {
  const absl::Status status = core_->Submit(std::move(input), Now());
  Pump();
  return status;
}

void SimRouter::Finish(const RequestId& id) {
  core_->Finish(id, request::FinishReason::kAborted, Now());
  Pump();
}

void SimRouter::OnStreamOpened(ControlStream& stream, uint64_t) {
  if (const auto old = keys_.find(&stream); old != keys_.end()) streams_.erase(old->second);
  const router::NodeKey key(next_key_++);
  keys_[&stream] = key;
  streams_[key] = &stream;
}

void SimRouter::OnNodeMessage(ControlStream& stream, const v1::NodeMessage& message) {
  const router::NodeKey key = keys_.at(&stream);
  if (message.has_registration()) {
    const auto welcome = core_->NodeJoined(key, message.registration(), Now());
    if (!welcome.ok()) {
      keys_.erase(&stream);
      streams_.erase(key);
      stream.CloseFromRouter();
    }
  } else {
    core_->OnNodeMessage(key, message, Now());
  }
  Pump();
}

void SimRouter::OnStreamEnded(ControlStream& stream, uint64_t) {
  const auto found = keys_.find(&stream);
  if (found == keys_.end()) return;
  const router::NodeKey key = found->second;
  keys_.erase(found);
  streams_.erase(key);
  core_->NodeLost(key, absl::UnavailableError("the stream ended"), Now());
  Pump();
}

void SimRouter::Pump() {
  TANDEM_CHECK(actions_.empty(), name(), ": an event came while the last one's actions go out");
  core_->TakeActions(actions_);
  std::map<router::NodeKey, v1::RouterMessage> messages;
  for (auto& [key, command] : actions_.commands) *messages[key].add_commands() = std::move(command);
  for (auto& [key, message] : messages) {
    const auto found = streams_.find(key);
    if (found != streams_.end()) found->second->ToNode(std::move(message));
  }
  for (const auto& [key, why] : actions_.disconnects) {
    const auto found = streams_.find(key);
    if (found == streams_.end()) continue;
    ControlStream* stream = found->second;
    keys_.erase(stream);
    streams_.erase(found);
    stream->CloseFromRouter();
  }
  for (const auto& [id, event] : actions_.client_events) clients_(*this, id, event);
  actions_.clear();
}

}  // namespace tandem::sim
