#include "common/node/heartbeats.h"

#include "common/runtime/clock.h"

namespace tandem::node {
namespace {

// How often the heartbeat thread looks whether a heartbeat is due.
constexpr absl::Duration kLook = absl::Milliseconds(50);

}  // namespace

void Heartbeats::Start(RouterStreams& routers) {
  thread_ = Thread("heartbeat", [this, &routers] { Run(routers); });
}

void Heartbeats::Stop() {
  stop_.Close();
  thread_.Join();
}

void Heartbeats::NoteInterval(const v1::RouterMessage& message) {
  const double asked_s = message.welcome().heartbeat_interval_s();
  if (!message.has_welcome() || !(asked_s > 0)) return;
  absl::MutexLock lock(&mutex_);
  pace_.RequestInterval(absl::Seconds(asked_s), RealClock().Now());
}

bool Heartbeats::PublishDue() const { return RealClock().Now() >= publish_at_; }

void Heartbeats::Publish(Report report, const NodeResources& resources) {
  publish_at_ = RealClock().Now() + kLook;
  load_.Set(std::move(report.load));
  absl::MutexLock lock(&mutex_);
  report_ = std::move(report);
  costs_.Update(resources);
}

void Heartbeats::OnRouterJoined() {
  absl::MutexLock lock(&mutex_);
  costs_.OnRouterJoined();
}

void Heartbeats::SendWithLoad(absl::flat_hash_map<RouterKey, v1::NodeMessage> messages,
                              v1::NodeLoad load, int64_t held, RouterStreams& routers) {
  freed_room_.OnReported(held);
  load_.Send(std::move(load), [&](const v1::NodeLoad& sent) {
    for (auto& [router, message] : messages) {
      *message.mutable_load() = sent;
      routers.Send(router, std::move(message));
    }
  });
}

void Heartbeats::AnnounceFreedRoom(int64_t held, absl::FunctionRef<v1::NodeLoad()> load,
                                   RouterStreams& routers) {
  if (!freed_room_.TakeDue(held)) return;
  load_.Send(load(), [&](const v1::NodeLoad& sent) {
    v1::NodeMessage message;
    *message.mutable_load() = sent;
    routers.Broadcast(message);
  });
}

std::optional<v1::NodeMessage> Heartbeats::TakeDue(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (!pace_.TakeDue(now)) return std::nullopt;
  v1::NodeMessage message;
  *message.mutable_counters() = report_.counters;
  message.set_blocks_lendable(report_.blocks_lendable);
  message.set_has_tenant_blocks(true);
  for (const kv::BlockOwners::Counts& counts : report_.owner_counts) {
    v1::TenantBlocks& held = *message.add_tenant_blocks();
    held.set_tenant(counts.tenant);
    held.set_used(counts.used);
    held.set_cached(counts.cached);
  }
  costs_.AddTo(message);
  return message;
}

void Heartbeats::Run(RouterStreams& routers) {
  while (!stop_.closed()) {
    const absl::Time now = RealClock().Now();
    routers.Tick(now);
    if (std::optional<v1::NodeMessage> message = TakeDue(now); message.has_value()) {
      load_.SendAgain([&](const v1::NodeLoad& load) {
        *message->mutable_load() = load;
        routers.Broadcast(*message);
      });
    }
    stop_.Pop(kLook);
  }
}

}  // namespace tandem::node
