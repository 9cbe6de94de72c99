// Implements StartSingleProcessCluster (cli/cluster/cluster.h): all nodes and routers in this
// process.
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "cli/cluster/cluster.h"
#include "common/base/status_macros.h"
#include "common/node/node_process.h"
#include "common/transfer/transfer_service.h"
#include "decode_node/decode_kind.h"
#include "prefill_node/prefill_kind.h"
#include "router/process/router_process.h"

namespace tandem::cli {
namespace {

class SingleProcessCluster final : public Cluster {
 public:
  absl::Status Start(const UpConfig& up, const Processors& processors,
                     const std::map<std::string, std::string>& env) {
    up_ = up;
    std::vector<std::string> fleet;
    for (int i = 0; i < up.routers; ++i) {
      ASSIGN_OR_RETURN(auto router, router::StartRouter(PlanRouter(up, i), env));
      fleet.push_back(router->fleet_address());
      routers_.push_back(std::move(router));
    }
    for (int i = 0; i < up.prefill; ++i) {
      RETURN_IF_ERROR(
          AddNode(PlanNode(up, "prefill", i, processors, fleet), prefill_node::PrefillKind(), env));
    }
    for (int i = 0; i < up.decode; ++i) {
      RETURN_IF_ERROR(
          AddNode(PlanNode(up, "decode", i, processors, fleet), decode_node::DecodeKind(), env));
    }
    return absl::OkStatus();
  }

  std::string grpc_address() const override { return routers_[0]->grpc_address(); }

  std::string grpc_addresses() const override {
    std::vector<std::string> addresses;
    for (const auto& router : routers_) addresses.push_back(router->grpc_address());
    return absl::StrJoin(addresses, ", ");
  }

  std::string fleet_addresses() const override {
    std::vector<std::string> addresses;
    for (const auto& router : routers_) addresses.push_back(router->fleet_address());
    return absl::StrJoin(addresses, ", ");
  }

  std::string http_addresses() const override {
    std::vector<std::string> addresses;
    for (const auto& router : routers_) {
      if (!router->http_address().empty()) addresses.push_back(router->http_address());
    }
    return absl::StrJoin(addresses, ", ");
  }

  std::string admin_addresses() const override {
    std::vector<std::string> addresses;
    for (const auto& router : routers_) {
      if (!router->admin_address().empty()) addresses.push_back(router->admin_address());
    }
    return absl::StrJoin(addresses, ", ");
  }

  absl::Status Watch(absl::Time) override {
    for (auto& router : routers_) router->Watch();
    for (auto& node : nodes_) RETURN_IF_ERROR(node->Watch());
    return absl::OkStatus();
  }

  bool Drain() override {
    bool clean = true;
    for (auto& router : routers_) clean = router->Drain(up_.common.drain_timeout) && clean;
    for (auto& node : nodes_) clean = node->Drain() && clean;
    return clean;
  }

 private:
  absl::Status AddNode(const node::NodeConfig& config, const node::NodeKind& kind,
                       const std::map<std::string, std::string>& env) {
    ASSIGN_OR_RETURN(
        auto process,
        node::NodeProcess::Start(config, kind, env, transfer::NewInProcessTransport(network_)));
    nodes_.push_back(std::move(process));
    return absl::OkStatus();
  }

  UpConfig up_;
  transfer::InProcessNetwork network_;
  // Nodes go before routers.
  std::vector<std::unique_ptr<router::RouterServer>> routers_;
  std::vector<std::unique_ptr<node::NodeProcess>> nodes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Cluster>> StartSingleProcessCluster(
    const UpConfig& up, const Processors& processors,
    const std::map<std::string, std::string>& env) {
  auto cluster = std::make_unique<SingleProcessCluster>();
  RETURN_IF_ERROR(cluster->Start(up, processors, env));
  return cluster;
}

}  // namespace tandem::cli
