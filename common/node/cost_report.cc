#include "common/node/cost_report.h"

#include <utility>

#include "common/rpc/cost_convert.h"

namespace tandem::node {

void CostReport::Update(const NodeResources& resources) {
  step_ = resources.step_profile();
  storage_ = resources.storage_profile();
  if (links_version_ == resources.creditor_links_version()) return;
  links_version_ = resources.creditor_links_version();
  links_ = resources.creditor_links();
}

void CostReport::AddTo(v1::NodeMessage& heartbeat) {
  const int64_t steps = step_.samples + step_.rejected;
  if (std::exchange(steps_told_, steps) != steps)
    *heartbeat.mutable_step_cost() = rpc::ToWire(step_);
  if (storage_.has_value()) {
    const int64_t copies = storage_->copies();
    if (std::exchange(copies_told_, copies) != copies)
      *heartbeat.mutable_storage_cost() = rpc::ToWire(*storage_);
  }
  if (std::exchange(links_told_, links_version_) != links_version_)
    *heartbeat.mutable_creditor_links() = links_;
}

}  // namespace tandem::node
