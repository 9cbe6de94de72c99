// The KV plane of a node in the swarm: the shipping KV transfer endpoint over the virtual network.
// Thread safety: none; the simulation's thread. Owner: a SimNode.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/transfer/kv_transfer_endpoint.h"
#include "sim/kv_plane.h"
#include "sim/node_seams.h"
#include "sim/world/schedule.h"
#include "sim/world/virtual_network.h"

namespace tandem::sim {

class EndpointPlane final : public KvPlane {
 public:
  // `network` and what `site` names outlive the plane.
  EndpointPlane(VirtualNetwork& network, const Topology& topology, KvPlaneSite site);

  const std::string& address() const override { return transport_->address(); }
  void Handle(const transfer::TransferCommand& command, absl::Time now) override {
    endpoint_->Handle(command, now);
  }
  void Tick(absl::Time now) override { endpoint_->Tick(now); }
  std::vector<transfer::TransferEvent> TakeEvents() override { return endpoint_->TakeEvents(); }
  transfer::TransferCounters counters() const override { return endpoint_->counters(); }

 private:
  std::unique_ptr<VirtualTransport> transport_;
  std::unique_ptr<transfer::KvTransferEndpoint> endpoint_;
};

}  // namespace tandem::sim
