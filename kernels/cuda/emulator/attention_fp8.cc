// The kernels of attention_fp8.cu, compiled for the emulator.
#include "kernels/cuda/attention_fp8.cu"
