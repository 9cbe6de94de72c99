// The kernels of sampling.cu, compiled for the emulator.
#include "kernels/cuda/sampling.cu"
