// The kernels of gemm_wgmma_fp8.cu, compiled for the emulator.
#include "kernels/cuda/gemm_wgmma_fp8.cu"
