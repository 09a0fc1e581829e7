snug_test(cuda_facts_test ROOMS backend)

# On a machine with a GPU: scripts/test_gpu.sh. They are built wherever nvcc is, and fail where no GPU answers.
if(SNUG_CUDA_FOUND)
  snug_test(cuda_op_test SOURCES op_runner.cpp ROOMS base tensor program backend backend_cuda)
  set_tests_properties(cuda_op_test PROPERTIES LABELS gpu)
endif()
