// The kernels of rope_kv.cu, compiled for the emulator.
#include "kernels/cuda/rope_kv.cu"
