#include "cli/cluster/cluster_start.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/secret_file.h"
#include "common/rpc/operator_key.h"
#include "common/runtime/processors.h"

namespace tandem::cli {

absl::StatusOr<std::unique_ptr<Cluster>> StartCluster(
    const UpConfig& up, const std::map<std::string, std::string>& env) {
  RETURN_IF_ERROR(CheckUpConfig(up));
  if (!up.router.tls.client_authorities.empty() && up.common.fleet_tls.empty()) {
    return absl::InvalidArgumentError(
        "tls-client-ca: this command asks its routers too, with the certificate in the folder cli "
        "of --fleet-tls; expected that flag");
  }
  if (up.single_process) return StartSingleProcessCluster(up, ReadProcessors(), env);
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError("cannot find this program's folder");
  return StartProcessCluster(up, self.parent_path().string(), ReadProcessors());
}

bool ReadyProbe::IsReady(const Cluster& cluster) {
  const std::string address = cluster.grpc_address();
  if (address.empty()) return false;
  if (client_ == nullptr) {
    const auto secret = config::ReadSecretFile("fleet-secret-file", up_.common.fleet_secret_file);
    if (!secret.ok()) return false;
    ClientOptions options = {.api_key = secret->empty() ? "" : rpc::OperatorKey(*secret),
                             .tls = {.skip_verification = up_.router.tls.any()}};
    if (!up_.router.tls.client_authorities.empty()) {
      options.tls.certificate = absl::StrCat(up_.common.fleet_tls, "/cli/tls.crt");
      options.tls.key = absl::StrCat(up_.common.fleet_tls, "/cli/tls.key");
    }
    auto client = Client::Connect(address, options);
    if (!client.ok()) return false;
    client_ = *std::move(client);
  }
  const auto status = client_->GetStatus(absl::Seconds(1));
  if (!status.ok()) return false;
  int ready = 0;
  for (const v1::NodeStatus& node : status->nodes()) ready += node.state() == "ready" ? 1 : 0;
  return ready >= up_.prefill + up_.decode;
}

}  // namespace tandem::cli
