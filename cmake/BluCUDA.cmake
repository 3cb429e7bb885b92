# CUDA for the native packages. Included by BluPackage.cmake, at file scope: enable_language() must not be in a function.
#
#   BLU_CUDA        AUTO (where a GPU is present), ON (an error without nvcc) or OFF
#   BLU_CUDA_ARCHS  what is compiled; one architecture is enough for one machine, e.g. 90a-real
#   BLU_HAVE_CUDA   result: whether CUDA sources are compiled
#
#   blu_cuda_sources(<library> <file>...)   adds .cu (and .cpp) files that exist in CUDA builds only
include_guard(GLOBAL)

set(BLU_CUDA AUTO CACHE STRING "Compile CUDA kernels: AUTO (where a GPU is present), ON, OFF")
set(BLU_CUDA_ARCHS "80-real;86-real;89-real;90a-real;90-virtual" CACHE STRING "CUDA architectures, as in CMAKE_CUDA_ARCHITECTURES")

set(BLU_HAVE_CUDA OFF)
if(BLU_CUDA STREQUAL "AUTO")
  if(EXISTS "/dev/nvidiactl")
    set(BLU_HAVE_CUDA ON)
  endif()
elseif(BLU_CUDA)
  set(BLU_HAVE_CUDA ON)
endif()

if(BLU_HAVE_CUDA)
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER)
    check_language(CUDA)
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    if(BLU_CUDA STREQUAL "AUTO")
      message(WARNING "${PROJECT_NAME}: a GPU is present but nvcc is not on PATH: building without CUDA. "
        "Install CUDA 13 (or put its bin folder on PATH), or set -DBLU_CUDA=OFF")
      set(BLU_HAVE_CUDA OFF)
    else()
      message(FATAL_ERROR "${PROJECT_NAME}: BLU_CUDA=${BLU_CUDA} needs nvcc: put the bin folder of CUDA 13 on PATH")
    endif()
  endif()
endif()

if(BLU_HAVE_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES "${BLU_CUDA_ARCHS}")
  if(BLU_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER AND CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
    message(FATAL_ERROR "${PROJECT_NAME}: expected nvcc 13.0 or newer, got ${CMAKE_CUDA_COMPILER_VERSION} (${CMAKE_CUDA_COMPILER})")
  endif()
  find_package(CUDAToolkit REQUIRED)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
  # The CUDA runtime is linked statically, and the driver's functions are asked for at run time: one wheel for machines
  # with and without a GPU.
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  target_compile_options(blu_settings INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo;-Xptxas=-warn-spills;-Xcompiler=-Wall,-Wextra,-Wshadow,-fno-math-errno>")
  if(BLU_WERROR)
    # Spills are shown, not errors: the check of the device code decides (tools/device_code.py).
    target_compile_options(blu_settings INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Werror>")
  endif()
endif()

function(blu_cuda_sources library)
  if(NOT BLU_HAVE_CUDA)
    return()
  endif()
  target_sources(${library}_objects PRIVATE ${ARGN})
  target_link_libraries(${library}_objects PUBLIC CUDA::cudart_static)
  target_link_libraries(${library} PRIVATE $<BUILD_INTERFACE:CUDA::cudart_static>)
  set_target_properties(${library} PROPERTIES LINKER_LANGUAGE CXX)
  string(TOUPPER "${library}_HAVE_CUDA" definition)
  target_compile_definitions(${library}_objects PUBLIC ${definition}=1)
endfunction()
