// The kernels of gemm_int8.cu, compiled for the emulator.
#include "kernels/cuda/gemm_int8.cu"
