// The kernels of quantise.cu, compiled for the emulator.
#include "kernels/cuda/quantise.cu"
