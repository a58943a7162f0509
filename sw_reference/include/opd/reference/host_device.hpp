#pragma once
// Functions marked OPD_HOST_DEVICE are compiled for the CPU by every compiler and for the GPU as
// well by nvcc.
#if defined(__CUDACC__)
#define OPD_HOST_DEVICE __host__ __device__
#else
#define OPD_HOST_DEVICE
#endif

// Unrolls the next loop on the GPU, so that an array indexed by it stays in registers.
#if defined(__CUDA_ARCH__)
#define OPD_UNROLL_DEVICE _Pragma("unroll")
#else
#define OPD_UNROLL_DEVICE
#endif
