// The kernels of attention.cu, compiled for the emulator.
#include "kernels/cuda/attention.cu"
