#include "tests/gpu/cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/gpu/cuda_stream.h"

namespace tandem::kernels {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // NVIDIA's advice for Hopper

// The library's functions.
struct Api {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmulDescInit_internal) desc_init;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutInit_internal) layout_init;
  decltype(&cublasLtMatmulPreferenceInit_internal) preference_init;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmul) matmul;

  absl::Status ToStatus(const char* call, cublasStatus_t status) const {
    if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(call, ": ", status_string(status)));
  }
};

// The major version of the headers: structures are laid out by the caller.
std::string LibraryName() { return absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR); }

absl::StatusOr<Api> Load() {
  const std::string name = LibraryName();
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError(dlerror());
  Api api;
  std::string missing;
  const auto find = [&](const char* symbol, auto& function) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr) absl::StrAppend(&missing, " ", symbol);
  };
  find("cublasLtCreate", api.create);
  find("cublasLtDestroy", api.destroy);
  find("cublasLtGetVersion", api.version);
  find("cublasLtGetStatusString", api.status_string);
  find("cublasLtMatmulDescInit_internal", api.desc_init);
  find("cublasLtMatmulDescSetAttribute", api.desc_set);
  find("cublasLtMatrixLayoutInit_internal", api.layout_init);
  find("cublasLtMatmulPreferenceInit_internal", api.preference_init);
  find("cublasLtMatmulPreferenceSetAttribute", api.preference_set);
  find("cublasLtMatmulAlgoGetHeuristic", api.heuristic);
  find("cublasLtMatmul", api.matmul);
  if (missing.empty()) return api;
  return absl::UnavailableError(absl::StrCat(name, " lacks", missing));
}

class LoadedCublasLt final : public CublasLt {
 public:
  LoadedCublasLt(const Api& api, cublasLtHandle_t handle, DeviceBuffer workspace)
      : api_(api), handle_(handle), workspace_(std::move(workspace)) {}
  ~LoadedCublasLt() override { api_.destroy(handle_); }

  // The library stores matrices by columns. Our rows of y are its columns, so it computes yᵀ as
  // w · xᵀ: w is k by n and transposed, x is k by rows, y is n by rows.
  absl::Status Choose(const DeviceGemmArgs& args) override {
    const auto n = static_cast<uint64_t>(args.n), k = static_cast<uint64_t>(args.k),
               rows = static_cast<uint64_t>(args.rows);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    cublasLtMatmulPreferenceOpaque_t preference;
    for (const auto& [call, status] :
         {std::pair("cublasLtMatmulDescInit",
                    api_.desc_init(&desc_, sizeof(desc_), CUBLAS_COMPUTE_32F, CUDA_R_32F)),
          std::pair(
              "cublasLtMatmulDescSetAttribute",
              api_.desc_set(&desc_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose))),
          std::pair("cublasLtMatrixLayoutInit (w)",
                    api_.layout_init(&w_, sizeof(w_), CUDA_R_16BF, k, n, args.k)),
          std::pair("cublasLtMatrixLayoutInit (x)",
                    api_.layout_init(&x_, sizeof(x_), CUDA_R_16BF, k, rows, args.k)),
          std::pair("cublasLtMatrixLayoutInit (y)",
                    api_.layout_init(&y_, sizeof(y_), CUDA_R_32F, n, rows, args.n)),
          std::pair("cublasLtMatmulPreferenceInit",
                    api_.preference_init(&preference, sizeof(preference))),
          std::pair("cublasLtMatmulPreferenceSetAttribute",
                    api_.preference_set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                        &kWorkspaceBytes, sizeof(kWorkspaceBytes)))}) {
      if (status != CUBLAS_STATUS_SUCCESS) return api_.ToStatus(call, status);
    }
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    const absl::Status status = api_.ToStatus(
        "cublasLtMatmulAlgoGetHeuristic",
        api_.heuristic(handle_, &desc_, &w_, &x_, &y_, &y_, &preference, 1, &result, &found));
    if (!status.ok()) return status;
    if (found == 0) return absl::UnimplementedError("cuBLASLt has no algorithm for this product");
    algorithm_ = result.algo;
    return absl::OkStatus();
  }

  void Multiply(const DeviceGemmArgs& args, DeviceStream& stream) override {
    auto& on = static_cast<cuda::CudaStream&>(stream);
    const float one = 1, zero = 0;
    const cublasStatus_t status =
        api_.matmul(handle_, &desc_, &one, args.w, &w_, args.x, &x_, &zero, args.y, &y_, args.y,
                    &y_, &algorithm_, workspace_.data(), kWorkspaceBytes, on.handle());
    if (status == CUBLAS_STATUS_SUCCESS) return;
    on.Check(api_.ToStatus("cublasLtMatmul", status).ToString().c_str(), cudaErrorUnknown);
  }

 private:
  const Api api_;
  const cublasLtHandle_t handle_;
  const DeviceBuffer workspace_;
  cublasLtMatmulDescOpaque_t desc_;
  cublasLtMatrixLayoutOpaque_t w_, x_, y_;
  cublasLtMatmulAlgo_t algorithm_;
};

}  // namespace

std::string CublasLt::Describe() {
  const absl::StatusOr<Api> api = Load();
  if (!api.ok()) return absl::StrCat("cuBLASLt: ", api.status().message());
  const size_t version = api->version();
  return absl::StrCat("cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<std::unique_ptr<CublasLt>> CublasLt::Open(Device& device) {
  const absl::StatusOr<Api> api = Load();
  if (!api.ok()) return api.status();
  absl::StatusOr<DeviceBuffer> workspace =
      device.Allocate(DeviceBuffer::Kind::kDevice, kWorkspaceBytes);
  if (!workspace.ok()) return workspace.status();
  cublasLtHandle_t handle = nullptr;
  const absl::Status status = api->ToStatus("cublasLtCreate", api->create(&handle));
  if (!status.ok()) return status;
  return std::unique_ptr<CublasLt>(
      std::make_unique<LoadedCublasLt>(*api, handle, *std::move(workspace)));
}

}  // namespace tandem::kernels
