#include "common/node/constraint_gate.h"

#include "common/rpc/convert.h"

namespace tandem::node {
namespace {

const v1::Leg& LegOf(const v1::NodeCommand& command) {
  switch (command.command_case()) {
    case v1::NodeCommand::kStartDecode:
      return command.start_decode().leg();
    case v1::NodeCommand::kPrefill:
      return command.prefill().leg();
    case v1::NodeCommand::kNewEpoch:
      return command.new_epoch().leg();
    case v1::NodeCommand::kAbort:
      return command.abort().leg();
    default:
      return v1::Leg::default_instance();
  }
}

request::GuidedParams ConstraintOf(const v1::NodeCommand& command) {
  if (command.has_start_decode()) return rpc::FromWire(command.start_decode().sequence().guided());
  if (command.has_prefill()) return rpc::FromWire(command.prefill().sequence().guided());
  return {};
}

}  // namespace

ConstraintGate::ConstraintGate(std::shared_ptr<guided::ConstraintCache> constraints,
                               Release release)
    : constraints_(std::move(constraints)),
      release_(std::move(release)),
      queue_([this](const request::GuidedParams& params) {
        // The core meets an error again, and reports it.
        static_cast<void>(constraints_->Get(params).status());
      }) {}

void ConstraintGate::Filter(RouterKey router, v1::RouterMessage& message) {
  auto& commands = *message.mutable_commands();
  int kept = 0;
  for (int i = 0; i < commands.size(); ++i) {
    if (Hold(router, commands[i])) continue;
    if (kept != i) commands.SwapElements(kept, i);
    ++kept;
  }
  commands.DeleteSubrange(kept, commands.size() - kept);
}

bool ConstraintGate::Hold(RouterKey router, v1::NodeCommand& command) {
  const Leg leg(router, LegOf(command).number());
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = held_.find(leg); found != held_.end()) {
      found->second.push_back(std::move(command));
      return true;
    }
  }
  const request::GuidedParams params = ConstraintOf(command);
  if (!params.any() || constraints_->Find(params).has_value()) return false;
  {
    absl::MutexLock lock(&mutex_);
    held_[leg].push_back(std::move(command));
  }
  guided::CompileQueue::Done done = [this, leg] { OnCompiled(leg); };
  if (!queue_.Add(params, done)) {
    static_cast<void>(constraints_->Get(params).status());
    OnCompiled(leg);
  }
  return true;
}

void ConstraintGate::OnCompiled(const Leg& leg) {
  // Released under the mutex: a command of the leg that comes now goes behind these.
  absl::MutexLock lock(&mutex_);
  const auto found = held_.find(leg);
  if (found == held_.end()) return;  // its router was lost
  v1::RouterMessage message;
  for (v1::NodeCommand& command : found->second) *message.add_commands() = std::move(command);
  held_.erase(found);
  release_(leg.first, std::move(message));
}

void ConstraintGate::OnRouterLost(RouterKey router) {
  absl::MutexLock lock(&mutex_);
  absl::erase_if(held_, [router](const auto& entry) { return entry.first.first == router; });
}

}  // namespace tandem::node
