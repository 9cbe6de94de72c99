// The control stream between one router and one node, with the properties of a gRPC stream: the
// node opens it; it is ordered and reliable while it lasts; a partition delays it; it ends for both
// ends when either closes it, dies, or receives nothing for too long. A message arrives in an event
// of its own, even after no time: nothing comes back to an end while it still sends.
// Thread safety: none; the simulation's thread. Owner: the simulation.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "sim/world/process.h"
#include "sim/world/virtual_network.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::sim {

class SimNode;
class SimRouter;

class ControlStream {
 public:
  struct Options {
    absl::Duration delay_max;
    // A node that gets no answer to its pings for this long ends the stream.
    absl::Duration keepalive = absl::Milliseconds(400);
  };

  // How often a blocked direction is looked at.
  static constexpr absl::Duration kHoldStep = absl::Milliseconds(4);

  ControlStream(World& world, VirtualNetwork& network, const Options& options, SimRouter& router,
                SimNode& node);

  // From the node's tick: opens a stream when there is none and the backoff has passed.
  void Tick();
  // The current connection as each end sees it; 0: that end has none.
  uint64_t node_connection() const { return node_connection_; }
  uint64_t router_connection() const { return router_connection_; }

  // Whether the router runs, and messages come through both ways.
  bool Healthy() const;
  // Whether it is the stream of these two processes.
  bool Joins(int router_id, int node_id) const;

  void ToRouter(std::unique_ptr<v1::NodeMessage> message);
  void ToNode(v1::RouterMessage message);
  // One end closes it; the other end learns of it after the messages sent before.
  void CloseFromRouter();
  void CloseFromNode();
  void Cut();
  void OnRouterCrash();
  void OnNodeCrash();

 private:
  // One direction: messages in order, none while the direction is blocked.
  struct Channel {
    struct Item {
      Item(absl::Time when, Action&& what) : at(when), deliver(std::move(what)) {}
      absl::Time at;
      Action deliver;
    };
    Process& from;
    Process& to;
    std::deque<Item> items;
    absl::Time free_at = absl::InfinitePast();
    bool scheduled = false;  // Drain runs, or is to run
  };
  void Send(Channel& channel, Action&& deliver);
  void Drain(Channel& channel);
  void EndAtRouter(uint64_t connection);
  void EndAtNode(uint64_t connection);

  World& world_;
  VirtualNetwork& network_;
  const Options options_;
  SimRouter& router_;
  SimNode& node_;
  uint64_t connections_ = 0;
  uint64_t node_connection_ = 0, router_connection_ = 0;
  uint64_t number_ = 0;  // of the node's messages on this stream
  absl::Time last_answer_, next_attempt_ = absl::InfinitePast();
  Channel to_router_, to_node_;
};

}  // namespace tandem::sim
