// The kernels of gemm.cu, compiled for the emulator.
#include "kernels/cuda/gemm.cu"
