#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/nccl/nccl_api.h"

namespace tandem::kernels::cuda {
namespace {

// Non-blocking communicators came with 2.14; single sends and receives on them settled in 2.18.
constexpr int kOldestVersion = NCCL_VERSION(2, 18, 0);

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

absl::StatusOr<NcclApi> Load() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat("NCCL cannot be loaded: ", dlerror()));
  }
  NcclApi api;
  const bool complete = Find(library, "ncclGetVersion", api.get_version) &&
                        Find(library, "ncclGetUniqueId", api.get_unique_id) &&
                        Find(library, "ncclCommInitRankConfig", api.comm_init_rank_config) &&
                        Find(library, "ncclCommGetAsyncError", api.comm_get_async_error) &&
                        Find(library, "ncclCommAbort", api.comm_abort) &&
                        Find(library, "ncclSend", api.send) &&
                        Find(library, "ncclRecv", api.recv) &&
                        Find(library, "ncclGetErrorString", api.get_error_string);
  if (!complete) {
    return absl::UnavailableError(absl::StrCat("libnccl.so.2 lacks a function: ", dlerror()));
  }
  int version = 0;
  const absl::Status status = api.ToStatus("ncclGetVersion", api.get_version(&version));
  if (!status.ok()) return status;
  if (version < kOldestVersion) {
    return absl::UnavailableError(absl::StrCat("libnccl.so.2 is version ", version, ", expected ",
                                               kOldestVersion, " or later"));
  }
  return api;
}

}  // namespace

absl::Status NcclApi::ToStatus(const char* call, ncclResult_t result) const {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(call, ": ", get_error_string(result)));
}

absl::StatusOr<const NcclApi*> LoadNccl() {
  static const auto* const loaded = new absl::StatusOr<NcclApi>(Load());
  if (!loaded->ok()) return loaded->status();
  return &**loaded;
}

}  // namespace tandem::kernels::cuda
