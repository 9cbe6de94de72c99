#include "sim/endpoint_plane.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::sim {

EndpointPlane::EndpointPlane(VirtualNetwork& network, const Topology& topology, KvPlaneSite site) {
  const std::string& name = site.process.name();
  transport_ = network.NewTransport(
      site.process,
      topology.reuse_addresses != 0 ? name : absl::StrCat(name, "/", site.incarnation.value()));
  const int64_t cell_bytes = 8 * topology.block_tokens;
  transfer::KvTransferOptions options;
  options.incarnation = site.incarnation;
  options.fleet_secret = "simulated";
  options.frame_bytes_min = options.frame_bytes_max = topology.frame_blocks * cell_bytes;
  options.peer_bytes_in_flight_max = topology.bytes_in_flight;
  options.nack_after = absl::Milliseconds(30);
  options.drain_after = absl::Milliseconds(150);
  endpoint_ = transfer::KvTransferEndpoint::Create(options, site.engine.arena(), *transport_);
  transport_->SetObserver(site.observer);
  // As the transfer thread does (common/transfer/transfer_service.cc): what arrives must not be
  // taken to come at the time of the last tick.
  transport_->SetBeforeActivity(
      [this, process = &site.process] { endpoint_->Tick(process->Now()); });
  transport_->SetOnActivity(std::move(site.on_activity));
}

}  // namespace tandem::sim
