// The kernels of attention_int8.cu, compiled for the emulator.
#include "kernels/cuda/attention_int8.cu"
