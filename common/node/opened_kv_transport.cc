#include "common/node/opened_kv_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/node/available_memory.h"
#include "common/telemetry/log.h"
#include "common/transfer/device_payloads.h"
#include "common/transfer/mapped_transport.h"
#include "common/transfer/nccl_transport.h"
#include "common/transfer/sealed_transport.h"
#include "common/transfer/staging_transport.h"
#include "common/transfer/ucx_on_device.h"
#include "common/transfer/ucx_transport.h"
#include "kernels/api/pair_channel.h"

namespace tandem::node {
namespace {

// The choice, before the transport is opened.
struct Plan {
  std::shared_ptr<transfer::DevicePayloads> device;  // null: payloads in host memory
  bool ucx_reaches_device = false;
  std::string why;
};

absl::StatusOr<Plan> MakePlan(const NodeConfig& config, const transfer::UcxOptions& ucx,
                              const transfer::KvTransferOptions& kv_transfer,
                              engine::Engine& engine) {
  Plan plan;
  const kernels::DeviceBlocks* blocks = engine.device_blocks();
  if (blocks == nullptr) {
    if (config.kv.payload_memory == "device") {
      return absl::InvalidArgumentError(
          absl::StrCat("kv-path is device, but device is ", config.device, ", expected cuda"));
    }
    plan.why = "KV is in host memory";
    return plan;
  }
  if (config.kv.payload_memory == "host") {
    plan.why = "kv-path is host";
    return plan;
  }
  if (config.kv.stores_blocks()) {
    const absl::string_view flag = config.kv.swap_bytes > 0 ? "swap-space" : "kv-disk";
    if (config.kv.payload_memory == "device") {
      return absl::InvalidArgumentError(
          absl::StrCat("kv-path is device, but ", flag,
                       " stores KV from the host's copy, expected kv-path host or auto"));
    }
    plan.why = absl::StrCat(flag, " stores KV from the host's copy");
    return plan;
  }
  transfer::DevicePayloadOptions options;
  options.format = kv_transfer.format;
  options.payload_bytes_max = kv_transfer.frame_bytes_max;
  auto device = transfer::DevicePayloads::Create(options, *blocks, engine.arena());
  if (!device.ok()) {
    if (config.kv.payload_memory == "device") return device.status();
    plan.why = absl::StrCat("no slots: ", device.status().message());
    return plan;
  }
  transfer::UcxOptions on_device = ucx;
  on_device.device = *device;
  const absl::Status ucx_status =
      config.kv.encryption
          ? absl::FailedPreconditionError("kv-encryption is on, which works on host memory")
          : transfer::TryUcxOnDevice(on_device);
  plan.ucx_reaches_device = ucx_status.ok();
  // Where blocks leave from the host, each step copies what it wrote there: for nothing on a decode
  // node that does not drain, and for longer than it computes on a prefill node.
  plan.device = *std::move(device);
  plan.why = ucx_status.ok() ? transfer::DescribeUcx() : std::string(ucx_status.message());
  return plan;
}

absl::Status CheckEncryption(const NodeConfig& config, const std::string& fleet_secret) {
  if (!config.kv.encryption) return absl::OkStatus();
  if (fleet_secret.empty()) {
    return absl::InvalidArgumentError(
        "kv-encryption is on, but there is no fleet-secret-file: any process could be the peer");
  }
  if (config.kv.transport == "nccl") {
    return absl::InvalidArgumentError(
        "kv-encryption is on, but transport is nccl, which does not encrypt payloads; expected "
        "auto, shm or tcp");
  }
  return absl::OkStatus();
}

// UCX, with connections that are sealed.
absl::StatusOr<std::unique_ptr<transfer::KvTransport>> OpenSealedUcx(
    const NodeConfig& config, const transfer::UcxOptions& ucx) {
  ASSIGN_OR_RETURN(std::unique_ptr<transfer::KvTransport> transport,
                   transfer::NewUcxTransport(ucx));
  transfer::SealedTransportOptions sealed;
  sealed.fleet_secret = ucx.fleet_secret;
  sealed.encrypts = config.kv.encryption;
  return transfer::NewSealedTransport(sealed, std::move(transport));
}

// Without device payloads each block that is written or received has a copy in the arena, which so
// grows to the size of the device's KV cache.
absl::Status CheckHostCopy(engine::Engine& engine) {
  if (engine.device_blocks() == nullptr) return absl::OkStatus();
  const absl::StatusOr<int64_t> available = AvailableMemoryBytes();
  const auto needed = static_cast<int64_t>(engine.arena().bytes().size());
  if (!available.ok() || needed <= *available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the device's KV cache has ", needed, " bytes, and of its copy in host memory ",
                   *available, " are available: expected fewer kv-blocks, or kv-path device"));
}

}  // namespace

absl::StatusOr<OpenedKvTransport> OpenKvTransport(const NodeConfig& config, const std::string& host,
                                                  const transfer::KvTransferOptions& kv_transfer,
                                                  engine::Engine& engine) {
  const bool nccl = config.kv.transport == "nccl";
  if (nccl && config.device != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("transport is nccl, which goes from GPU to GPU, but device is ", config.device,
                     ", expected cuda"));
  }
  RETURN_IF_ERROR(CheckEncryption(config, kv_transfer.fleet_secret));
  transfer::UcxOptions ucx;
  ucx.transports = nccl ? "auto" : config.kv.transport;
  ucx.host = host;
  ucx.fleet_secret = kv_transfer.fleet_secret;
  ASSIGN_OR_RETURN(Plan plan, MakePlan(config, ucx, kv_transfer, engine));
  OpenedKvTransport path;
  path.on_device = plan.device != nullptr;
  path.why = std::move(plan.why);
  if (plan.ucx_reaches_device) ucx.device = plan.device;
  ASSIGN_OR_RETURN(path.transport, OpenSealedUcx(config, ucx));
  if (path.on_device && !plan.ucx_reaches_device) {
    path.transport = transfer::NewStagingTransport(std::move(path.transport), plan.device);
  }
  if (nccl) {
    // Slots of a channel: payloads that are copied in, sent, received or copied out at a time.
    constexpr int kSlots = 4;
    ASSIGN_OR_RETURN(auto channels,
                     kernels::OpenNcclChannels(0, kSlots, kv_transfer.frame_bytes_max,
                                               path.on_device ? kernels::SlotMemory::kDevice
                                                              : kernels::SlotMemory::kHost));
    transfer::NcclTransportOptions options;
    options.fleet_secret = kv_transfer.fleet_secret;
    options.device = plan.device;
    path.transport =
        transfer::NewNcclTransport(options, std::move(path.transport), std::move(channels));
  }
  if (config.kv.encryption) {
    Log(LogLevel::kInfo, "KV travels encrypted; arenas of this host are not mapped",
        {{"cipher", "AES-256-GCM"}});
  } else if (!path.on_device && !nccl && config.kv.transport != "tcp") {
    transfer::MappedTransportOptions mapped;
    mapped.fleet_secret = kv_transfer.fleet_secret;
    path.transport =
        transfer::NewMappedTransport(mapped, engine.arena(), std::move(path.transport));
  }
  if (!path.on_device) RETURN_IF_ERROR(CheckHostCopy(engine));
  engine.UseHostMirror(!path.on_device);
  return path;
}

}  // namespace tandem::node
