# The CUDA backend is optional: TANDEM_CUDA=AUTO builds it where a toolkit is found, ON insists, OFF never looks.
# SKIP is OFF until scripts/build.sh runs without --cuda-if-gpu.
# Binaries link the CUDA runtime statically and nothing of the driver, so they load on hosts without one.
set(TANDEM_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON, OFF or SKIP")
set_property(CACHE TANDEM_CUDA PROPERTY STRINGS AUTO ON OFF SKIP)
set(TANDEM_CUDA_ARCHITECTURES "80-real;90a-real;100-virtual" CACHE STRING
  "GPU architectures to compile for, as CMAKE_CUDA_ARCHITECTURES; one is enough on a developer's machine")
set(TANDEM_HAVE_CUDA FALSE)

if(NOT TANDEM_CUDA MATCHES "^(AUTO|ON|OFF|SKIP)$")
  message(FATAL_ERROR "TANDEM_CUDA is '${TANDEM_CUDA}', expected AUTO, ON, OFF or SKIP")
endif()
# A sanitized build tests the kernels' sources through the emulator; nvcc's host pass gains it nothing.
if(NOT TANDEM_CUDA MATCHES "^(OFF|SKIP)$" AND NOT (TANDEM_CUDA STREQUAL "AUTO" AND TANDEM_SANITIZE))
  find_program(TANDEM_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
  if(TANDEM_NVCC)
    set(CMAKE_CUDA_COMPILER ${TANDEM_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES ${TANDEM_CUDA_ARCHITECTURES})
    if(NOT CMAKE_CUDA_COMPILER_LAUNCHER AND CMAKE_CXX_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
    endif()
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc 13 speaks C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    find_package(CUDAToolkit REQUIRED)
    set(TANDEM_HAVE_CUDA TRUE)
    message(STATUS "CUDA backend: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${TANDEM_CUDA_ARCHITECTURES}")
  elseif(TANDEM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TANDEM_CUDA=ON, but no nvcc was found in PATH, CUDA_HOME/bin or /usr/local/cuda/bin")
  endif()
endif()
if(NOT TANDEM_HAVE_CUDA)
  message(STATUS "CUDA backend: not built (TANDEM_CUDA=${TANDEM_CUDA})")
endif()
