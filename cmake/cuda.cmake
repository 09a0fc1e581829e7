# Sets SNUG_CUDA_FOUND; where it is on, enables CUDA as a language. CMake 3.25 knows neither nvcc's flag for C++20 nor
# architectures such as 90a: both are said here.
set(SNUG_CUDA_FOUND OFF)
# Under WSL2 the driver is Windows's.
if(SNUG_CUDA STREQUAL "AUTO" AND (EXISTS /dev/nvidiactl OR EXISTS /usr/lib/wsl/lib/libcuda.so.1))
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
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR})
if(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
  message(FATAL_ERROR "NCCL: nccl.h is '${NCCL_INCLUDE_DIR}', the library '${NCCL_LIBRARY}': install libnccl-dev, say "
                      "where they are by -DNCCL_INCLUDE_DIR and -DNCCL_LIBRARY, or build without GPUs: -DSNUG_CUDA=OFF")
endif()
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

# fmt's checks of formats while compiling are beyond nvcc's front end; the C++ compiler makes them. No contraction, as
# for all of snug. 177: a constant that only a discarded branch reads; 20208: long double, in fmt, on the host only.
set(cuda_flags --expt-relaxed-constexpr -fmad=false -DFMT_CONSTEVAL= -DFMT_USE_CONSTEXPR=1
    -diag-suppress=177,20208 -Werror=all-warnings -Xcompiler=-Wall,-Wextra)
# nvcc's own 'native' leaves out the instructions that one generation alone has, such as Hopper's products by warpgroups.
set(architectures ${SNUG_CUDA_ARCHITECTURES})
if(architectures STREQUAL "native")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE capabilities
                  ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${capabilities}")
  list(REMOVE_DUPLICATES capabilities)
  list(TRANSFORM capabilities REPLACE "\\." "")
  list(TRANSFORM capabilities REPLACE "^(9|[0-9][0-9])([0-9])$" "\\1\\2a")
  if(NOT capabilities)
    message(FATAL_ERROR "SNUG_CUDA_ARCHITECTURES is 'native', and nvidia-smi tells of no GPU here: name what to build "
                        "for, as -DSNUG_CUDA_ARCHITECTURES=89 (compute capability 8.9), take --preset cuda-release, or "
                        "build for the CPU alone: -DSNUG_CUDA=OFF")
  endif()
  set(architectures ${capabilities})
endif()
# Of several, those that this toolkit knows. '120-virtual' is code that the driver compiles, for cards to come.
execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known_architectures)
list(LENGTH architectures count)
foreach(architecture IN LISTS architectures)
  string(REGEX MATCH "^[0-9]+" number ${architecture})
  if(count GREATER 1 AND NOT known_architectures MATCHES "compute_${number}[^0-9]")
    message(STATUS "nvcc ${CMAKE_CUDA_COMPILER_VERSION} does not know compute_${architecture}: left out")
  elseif(architecture MATCHES "-virtual$")
    list(APPEND cuda_flags -gencode=arch=compute_${number},code=compute_${number})
    list(APPEND SNUG_CUDA_CODE ${architecture})
  else()
    list(APPEND cuda_flags -gencode=arch=compute_${architecture},code=sm_${architecture})
    list(APPEND SNUG_CUDA_CODE ${architecture})
  endif()
endforeach()
if(NOT cuda_flags MATCHES "gencode")
  message(FATAL_ERROR "SNUG_CUDA_ARCHITECTURES is '${SNUG_CUDA_ARCHITECTURES}', of which nvcc knows: "
                      "${known_architectures}")
endif()
if(SNUG_PORTABLE AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
  list(APPEND cuda_flags --compress-mode=size)  # a package has kernels for every generation
endif()
list(JOIN cuda_flags " " CMAKE_CUDA_FLAGS)

# Says where a library lies that is opened while snug runs, in case the dynamic linker does not find it by its name.
# What is built for other machines knows no such place.
function(snug_opened_library target definition path)
  if(SNUG_PORTABLE)
    set(path "")
  endif()
  target_compile_definitions(${target} PRIVATE ${definition}="${path}")
endfunction()
