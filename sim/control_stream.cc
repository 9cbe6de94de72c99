#include "sim/control_stream.h"

#include <utility>

#include "sim/sim_node.h"
#include "sim/sim_router.h"

namespace tandem::sim {
namespace {

constexpr absl::Duration kBackoff = absl::Milliseconds(30);

}  // namespace

ControlStream::ControlStream(World& world, VirtualNetwork& network, const Options& options,
                             SimRouter& router, SimNode& node)
    : world_(world),
      network_(network),
      options_(options),
      router_(router),
      node_(node),
      to_router_{.from = node, .to = router, .items = {}},
      to_node_{.from = router, .to = node, .items = {}} {}

bool ControlStream::Joins(int router_id, int node_id) const {
  return router_.id() == router_id && node_.id() == node_id;
}

bool ControlStream::Healthy() const {
  return router_.alive() && !router_.paused() && !network_.Blocked(node_.id(), router_.id()) &&
         !network_.Blocked(router_.id(), node_.id());
}

void ControlStream::Tick() {
  const absl::Time now = world_.now();
  if (node_connection_ == 0) {
    if (now < next_attempt_ || !Healthy()) return;
    next_attempt_ = now + kBackoff;
    node_connection_ = router_connection_ = ++connections_;
    last_answer_ = now;
    number_ = 0;
    router_.OnStreamOpened(*this, router_connection_);
    node_.OnStreamOpened(*this);
    return;
  }
  if (Healthy())
    last_answer_ = now;
  else if (now - last_answer_ > options_.keepalive)
    CloseFromNode();
}

void ControlStream::Send(Channel& channel, Action&& deliver) {
  // A slow router takes longer to read and to write. What a slow node takes longer for is its own.
  absl::Duration delay = world_.RandomDelay(options_.delay_max);
  if (router_.slowness() != 1) delay *= router_.slowness();
  channel.free_at = std::max(channel.free_at, world_.now() + delay);
  channel.items.emplace_back(channel.free_at, std::move(deliver));
  if (!std::exchange(channel.scheduled, true))
    world_.After(channel.free_at - world_.now(), [this, &channel] { Drain(channel); });
}

void ControlStream::Drain(Channel& channel) {
  const bool blocked = network_.Blocked(channel.from.id(), channel.to.id());
  while (!blocked && !channel.items.empty() && channel.items.front().at <= world_.now()) {
    auto deliver = std::move(channel.items.front().deliver);
    channel.items.pop_front();
    deliver();
  }
  channel.scheduled = !channel.items.empty();
  if (!channel.scheduled) return;
  const absl::Duration wait = channel.items.front().at - world_.now();
  world_.After(blocked ? kHoldStep : std::max(wait, absl::ZeroDuration()),
               [this, &channel] { Drain(channel); });
}

void ControlStream::ToRouter(std::unique_ptr<v1::NodeMessage> message) {
  if (node_connection_ == 0) return;
  message->set_sequence_number(++number_);
  Send(to_router_, [this, connection = node_connection_, message = std::move(message)]() mutable {
    router_.Deliver([this, connection, message = std::move(message)]() mutable {
      if (connection != router_connection_) return;
      router_.OnNodeMessage(*this, *message);
      node_.Recycle(std::move(message));
    });
  });
}

void ControlStream::ToNode(v1::RouterMessage message) {
  if (router_connection_ == 0) return;
  Send(to_node_, [this, connection = router_connection_,
                  message = std::make_unique<v1::RouterMessage>(std::move(message))]() mutable {
    node_.Deliver([this, connection, message = std::move(message)] {
      if (connection == node_connection_) node_.OnRouterMessage(*this, std::move(*message));
    });
  });
}

void ControlStream::EndAtRouter(uint64_t connection) {
  router_.Post(absl::ZeroDuration(), [this, connection] {
    if (connection != router_connection_) return;
    router_connection_ = 0;
    router_.OnStreamEnded(*this, connection);
  });
}

void ControlStream::EndAtNode(uint64_t connection) {
  node_.Post(absl::ZeroDuration(), [this, connection] {
    if (connection != node_connection_) return;
    node_connection_ = 0;
    next_attempt_ = world_.now() + kBackoff;
    node_.OnStreamEnded(*this);
  });
}

void ControlStream::CloseFromRouter() {
  const uint64_t connection = std::exchange(router_connection_, 0);
  if (connection == 0) return;
  Send(to_node_, [this, connection] { EndAtNode(connection); });
}

void ControlStream::CloseFromNode() {
  const uint64_t connection = std::exchange(node_connection_, 0);
  if (connection == 0) return;
  next_attempt_ = world_.now() + kBackoff;
  node_.OnStreamEnded(*this);
  Send(to_router_, [this, connection] { EndAtRouter(connection); });
}

void ControlStream::Cut() {
  if (router_connection_ != 0) EndAtRouter(router_connection_);
  if (node_connection_ != 0) EndAtNode(node_connection_);
}

void ControlStream::OnRouterCrash() {
  const uint64_t connection = std::exchange(router_connection_, 0);
  if (connection != 0) Send(to_node_, [this, connection] { EndAtNode(connection); });
}

void ControlStream::OnNodeCrash() {
  const uint64_t connection = std::exchange(node_connection_, 0);
  next_attempt_ = world_.now() + kBackoff;
  if (connection != 0) Send(to_router_, [this, connection] { EndAtRouter(connection); });
}

}  // namespace tandem::sim
