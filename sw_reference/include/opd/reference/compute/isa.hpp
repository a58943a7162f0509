#pragma once
// The arithmetic of the vector unit is compiled once per instruction set. Each time it lies in an
// inline namespace of its own, so that no linker takes one for the other: OPD_LANES_ISA, `portable`
// unless a source file says otherwise before it includes anything.
#include "opd/reference/binary32.hpp"
#include "opd/reference/element.hpp"
#include "opd/reference/host_device.hpp"
#include "opd/types/computation.hpp"

#if !defined(OPD_LANES_ISA)
#define OPD_LANES_ISA portable
#endif

// Unrolls the next loop over lanes; nvcc knows no GCC pragma.
#if defined(__CUDACC__)
#define OPD_UNROLL_LANES
#else
#define OPD_UNROLL_LANES _Pragma("GCC unroll 4")
#endif
