// The kernel of checksum.cu, compiled for the emulator.
#include "kernels/cuda/checksum.cu"
