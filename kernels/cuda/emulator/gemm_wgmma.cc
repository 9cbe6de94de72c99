// The kernels of gemm_wgmma.cu, compiled for the emulator.
#include "kernels/cuda/gemm_wgmma.cu"
