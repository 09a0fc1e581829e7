# Sets SNUG_CUDA_FOUND; where it is on, enables CUDA as a language. CMake 3.25 knows neither nvcc's flag for C++20 nor
# architectures such as 90a: both are said here.
set(SNUG_CUDA_FOUND OFF)
if(SNUG_CUDA STREQUAL "AUTO" AND EXISTS /dev/nvidiactl)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(SNUG_CUDA_FOUND ON)
  endif()
elseif(SNUG_CUDA STREQUAL "ON")
  set(SNUG_CUDA_FOUND ON)
elseif(NOT SNUG_CUDA MATCHES "^(AUTO|OFF)$")
  message(FATAL_ERROR "SNUG_CUDA is '${SNUG_CUDA}', expected AUTO, ON or OFF")
endif()
if(NOT SNUG_CUDA_FOUND)
  return()
endif()

set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit REQUIRED)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

# fmt's checks of formats while compiling are beyond nvcc's front end; the C++ compiler makes them. No contraction, as
# for all of snug. 177: a constant that only a discarded branch reads; 20208: long double, in fmt, on the host only.
set(cuda_flags --expt-relaxed-constexpr -fmad=false -DFMT_CONSTEVAL= -DFMT_USE_CONSTEXPR=1
    -diag-suppress=177,20208 -Werror=all-warnings -Xcompiler=-Wall,-Wextra)
foreach(architecture IN LISTS SNUG_CUDA_ARCHITECTURES)
  if(architecture STREQUAL "native")
    list(APPEND cuda_flags -arch=native)
  else()
    list(APPEND cuda_flags -gencode=arch=compute_${architecture},code=sm_${architecture})
  endif()
endforeach()
list(JOIN cuda_flags " " CMAKE_CUDA_FLAGS)
