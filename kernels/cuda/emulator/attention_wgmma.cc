// The kernels of attention_wgmma.cu, compiled for the emulator.
#include "kernels/cuda/attention_wgmma.cu"
