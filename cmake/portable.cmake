# How snug is built for packages: for more processors than this machine's, and needing little of the system it runs on.

# The dynamic linker refuses processors of a lower level than SNUG_MARCH.
add_link_options(-Wl,-z,${SNUG_MARCH})

# Libraries that are named here are linked from their archives: a folder with nothing but these is where the linker
# looks first. yaml-cpp is then a name like the others, and not the target that its CMake package makes. What Debian has
# no archives of (oneDNN, fmt; and GCC's libgomp, of which oneDNN and snug are to share one) lies beside the program, as
# do the libraries that these need: DT_RPATH holds for them too.
set(archives ${PROJECT_BINARY_DIR}/archives)
file(MAKE_DIRECTORY ${archives})
foreach(library jpeg pcre2-8 png snappy uring utf8proc webp xxhash yaml-cpp z zstd)
  find_library(archive_of_${library} lib${library}.a REQUIRED)
  mark_as_advanced(archive_of_${library})
  file(CREATE_LINK ${archive_of_${library}} ${archives}/lib${library}.a SYMBOLIC)
endforeach()
link_directories(BEFORE ${archives})
add_link_options(-Wl,--disable-new-dtags)

# What the linker read, for scripts/sbom.py.
add_link_options(-Wl,-Map=${PROJECT_BINARY_DIR}/$<TARGET_PROPERTY:NAME>.map)

# Makes the CPU's kernels as two shared libraries of one name, of which the dynamic linker opens the one that is for the
# processor: beside the program, or in glibc-hwcaps/x86-64-v4 there. Instructions for bf16, and AMX, are in the second,
# and are used where the processor has them (backend/cpu/tile_product.cpp). Of other rooms they use the program's code.
function(snug_kernel_libraries)
  foreach(level v3 v4)
    set(kernels snug_kernels_${level})
    add_library(${kernels} SHARED ${ARGN})
    target_link_libraries(${kernels} PRIVATE snug_options DNNL::dnnl OpenMP::OpenMP_CXX)
    set_target_properties(${kernels} PROPERTIES OUTPUT_NAME snug_kernels SKIP_BUILD_RPATH ON INSTALL_RPATH ""
                          LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  endforeach()
  add_library(snug_v4_options INTERFACE)  # linked last, as of several -march= the last one holds
  target_compile_options(snug_v4_options INTERFACE -march=x86-64-v4 -mavx512bf16 -mamx-tile -mamx-bf16)
  target_link_libraries(snug_kernels_v4 PRIVATE snug_v4_options)
  set_target_properties(snug_kernels_v4 PROPERTIES
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/glibc-hwcaps/x86-64-v4)
  add_library(snug_backend_cpu INTERFACE)
  target_link_libraries(snug_backend_cpu INTERFACE snug_kernels_v3 snug_backend snug_base snug_tensor snug_program
                        OpenMP::OpenMP_CXX)
  add_dependencies(snug_backend_cpu snug_kernels_v4)
endfunction()
