// NCCL's functions, looked up in libnccl.so.2 at run time, so that programs load on hosts without
// it. Thread safety: the table is constant once loaded. Errors: kUnavailable where the library or
// one of its functions is missing (says which).
#pragma once

#include <nccl.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::kernels::cuda {

struct NcclApi {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;

  // OK, or kUnavailable naming `call` and NCCL's words for the error.
  absl::Status ToStatus(const char* call, ncclResult_t result) const;
};

// Loaded once, for the rest of the process. kUnavailable with the loader's words, or naming what
// the library lacks.
absl::StatusOr<const NcclApi*> LoadNccl();

}  // namespace tandem::kernels::cuda
