#include "common/transfer/ucx_local.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "common/transfer/ucx_message.h"

namespace tandem::transfer {

UcxLocal::UcxLocal(const UcxOptions& options)
    : options_(options), random_(NewSystemRandom()), origin_(random_->Next()) {}

absl::Status UcxLocal::Start(ucp_am_recv_callback_t on_message, void* arg) {
  const std::string& wanted = options_.transports;
  if (wanted != "auto" && wanted != "shm" && wanted != "tcp") {
    return absl::InvalidArgumentError(
        absl::StrCat("transports is '", wanted, "', expected auto, shm or tcp"));
  }
  const auto memory = options_.device != nullptr && !options_.device->host_addressable()
                          ? UcxContext::Memory::kHostAndCuda
                          : UcxContext::Memory::kHost;
  ASSIGN_OR_RETURN(tcp_context_, UcxContext::Create("tcp", memory));
  ASSIGN_OR_RETURN(control_, UcxWorker::Create(*tcp_context_));
  RETURN_IF_ERROR(control_->Handle(kUcxMessageId, on_message, arg));
  header_bytes_max_ = control_->header_bytes_max();
  if (wanted != "tcp") RETURN_IF_ERROR(StartShm(memory));
  address_ = UcxAddress{.origin = origin_,
                        .takes_tcp = wanted != "shm",
                        .takes_shm = shm_context_ != nullptr,
                        .host = options_.host,
                        .worker_address = control_->address(),
                        .shm_address = ""};
  return absl::OkStatus();
}

absl::Status UcxLocal::StartShm(UcxContext::Memory memory) {
  absl::StatusOr<std::unique_ptr<UcxContext>> shm = UcxContext::Create("posix", memory);
  if (shm.ok()) {
    shm_context_ = *std::move(shm);
  } else if (options_.transports == "shm") {
    return shm.status();
  } else {
    Log(LogLevel::kWarning, "KV does not use shared memory", {{"reason", shm.status().message()}});
  }
  return absl::OkStatus();
}

bool UcxLocal::SharesMemoryWith(const UcxAddress& address) const {
  return shm_context_ != nullptr && address.takes_shm && address.host == options_.host;
}

bool UcxLocal::MayUseTcpWith(const UcxAddress& address) const {
  return address_.takes_tcp && address.takes_tcp;
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxLocal::NewShmWorker(ucp_am_recv_callback_t on_message,
                                                                  void* arg) {
  ASSIGN_OR_RETURN(std::unique_ptr<UcxWorker> worker, UcxWorker::Create(*shm_context_));
  RETURN_IF_ERROR(worker->Handle(kUcxMessageId, on_message, arg));
  header_bytes_max_ = std::min(header_bytes_max_, worker->header_bytes_max());
  return worker;
}

ucs_memory_type_t UcxLocal::MemoryOf(const std::byte* piece) const {
  const bool cuda = options_.device != nullptr && options_.device->Holds(piece) &&
                    !options_.device->host_addressable();
  return cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

}  // namespace tandem::transfer
