// The kernels of grouped_gemm.cu, compiled for the emulator.
#include "kernels/cuda/grouped_gemm.cu"
