#pragma once
// Where the vectors lie, seen from a private copy (scripts/mutate): CMake tells the tests otherwise.
#define OPD_VECTORS "testbench/vectors"
