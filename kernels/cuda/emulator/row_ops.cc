// The kernels of row_ops.cu, compiled for the emulator.
#include "kernels/cuda/row_ops.cu"
