// What the headers of the CUDA runtime take from those of its compiler, nvcc, where only the former are there: a torch
// that pip installs brings no others. To a compiler that makes no code for the device these words say nothing.

#pragma once

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __constant__
#define __cudart_builtin__
#define __device__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __global__
#define __host__
#define __managed__
#define __shared__
