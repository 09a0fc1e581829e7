if(SNUG_CUDA_FOUND)
  add_executable(cuda_ops cuda_ops.cpp)
  target_link_libraries(cuda_ops PRIVATE snug_backend_cuda)
endif()
