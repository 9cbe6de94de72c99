// What a node tells its routers of its costs in heartbeats: of its steps, its storage and the links
// to its creditors, each only when it has changed since the heartbeat before, and all again when a
// router joins. Thread safety: none; the owner guards it. Owner: NodeRuntime.
#pragma once

#include <cstdint>
#include <optional>

#include "common/cost/copy_profile.h"
#include "common/cost/step_cost.h"
#include "common/node/node_resources.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::node {

class CostReport {
 public:
  // What is known now.
  void Update(const NodeResources& resources);
  // All of it is news to the router that has joined.
  void OnRouterJoined() { steps_told_ = copies_told_ = links_told_ = 0; }
  // Sets what has changed.
  void AddTo(v1::NodeMessage& heartbeat);

 private:
  cost::StepProfile step_;
  std::optional<cost::StorageProfile> storage_;
  // Bound: CreditorCosts::kCreditorsMax.
  google::protobuf::RepeatedPtrField<v1::CreditorLink> links_;
  int64_t links_version_ = 0;
  // What a router has heard of; 0: nothing.
  int64_t steps_told_ = 0, copies_told_ = 0, links_told_ = 0;
};

}  // namespace tandem::node
