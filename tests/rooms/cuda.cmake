snug_test(cuda_facts_test ROOMS backend)
snug_test(kernels_doc_test ROOMS backend)
target_compile_definitions(kernels_doc_test PRIVATE SNUG_DOCS="${PROJECT_SOURCE_DIR}/docs")
snug_test(streams_test ROOMS train)
snug_test(stream_ranks_test ROOMS train)

# On a machine with a GPU: scripts/test_gpu.sh, which builds gpu_tests. They are built wherever nvcc is, and fail, or
# are skipped, where no GPU answers.
function(snug_gpu_test name)
  snug_test(${name} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS gpu)
  add_dependencies(gpu_tests ${name})
endfunction()

if(SNUG_CUDA_FOUND)
  add_custom_target(gpu_tests)
  snug_gpu_test(cuda_op_test SOURCES op_runner.cpp ROOMS base tensor program backend backend_cuda)
  snug_gpu_test(cuda_parity_test ROOMS train backend_cuda)
  snug_gpu_test(cuda_streams_test ROOMS train backend_cuda)
  snug_gpu_test(cuda_arrangement_test ROOMS train backend_cuda)
  snug_gpu_test(cuda_rules_test ROOMS train backend_cuda)
  # Of two and four GPUs, skipped where there are fewer; cuda_processes_test needs one alone for most of its own.
  snug_gpu_test(cuda_ranks_test ROOMS train measure comm_cuda)
  snug_gpu_test(cuda_faults_test ROOMS cli backend_cuda)
  target_link_libraries(cuda_faults_test PRIVATE nlohmann_json::nlohmann_json)
  target_compile_definitions(cuda_faults_test PRIVATE SNUG_BINARY="$<TARGET_FILE:snug>"
                             SNUG_FAULTY_DEVICE="$<TARGET_FILE:snug_faulty_device>")
  add_dependencies(cuda_faults_test snug snug_faulty_device)
  if(TARGET snug_mpi AND MPIEXEC_EXECUTABLE)
    snug_gpu_test(cuda_processes_test ROOMS backend_cuda)
    target_link_libraries(cuda_processes_test PRIVATE nlohmann_json::nlohmann_json)
    target_compile_definitions(cuda_processes_test PRIVATE SNUG_BINARY="$<TARGET_FILE:snug>"
                               SNUG_MPIRUN="${MPIEXEC_EXECUTABLE}")
    add_dependencies(cuda_processes_test snug snug_mpi)
  endif()
endif()
