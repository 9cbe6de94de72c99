// The kernels of gemm_weight_only.cu, compiled for the emulator.
#include "kernels/cuda/gemm_weight_only.cu"
