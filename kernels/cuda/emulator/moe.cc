// The kernels of moe.cu, compiled for the emulator.
#include "kernels/cuda/moe.cu"
